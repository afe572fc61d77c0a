"""One run: which method on which data, and the line that records how it went."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

Record: TypeAlias = dict[str, Any]

METHODS = ("exact", "exact-best", "exact-paper", "exact-adam", "sgpr", "svgp", "lightgbm")
# Of these the suites' settings speak: kernel, mean and so on.
GAUSSIAN = tuple(name for name in METHODS if name != "lightgbm")
DONE, FAILED, SKIPPED = "done", "failed", "skipped"
# Every line has these, in this order; null where one does not apply.
MEASURED = (
    *("n_train", "n_test", "d", "subset", "rmse", "nll", "coverage", "calibration", "seconds"),
    *("memory_bytes", "partitions", "kernel_evaluations", "hyperparameters", "residuals"),
    *("trace", "x", "warnings", "machine", "versions", "git", "started", "finished"),
)
KEYS = ("suite", "dataset", "method", "seed", "settings", "status", "reason", *MEASURED)


@dataclass(frozen=True)
class Run:
    """What to do. settings: plain JSON; x: where a figure shows the run, if it is of one."""

    suite: str
    dataset: str
    method: str
    seed: int
    subset: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    x: float | None = None

    @property
    def key(self) -> str:
        """Runs with the same key are the same run."""
        return key_of(asdict(self))

    def __str__(self) -> str:
        named = {"subset": self.subset} if self.subset is not None else {}
        rest = "".join(f", {k} = {v}" for k, v in {**named, **self.settings}.items())
        return f"{self.dataset}, {self.method}, seed {self.seed}{rest}"

    def record(self, status: str, reason: str | None = None, **measured: Any) -> Record:
        """The line of this run: every key, and only numbers that JSON has."""
        unknown = set(measured) - set(MEASURED)
        if unknown:
            raise ValueError(f"record: expected keys among {MEASURED}, got {sorted(unknown)}")
        found = {**dict.fromkeys(MEASURED), **measured, **asdict(self)}
        found |= {"status": status, "reason": reason, "warnings": measured.get("warnings", [])}
        cleaned: Record = plain({key: found[key] for key in KEYS})
        return cleaned


def key_of(record: Mapping[str, Any]) -> str:
    """The key of the run that a line records."""
    names = ("suite", "dataset", "method", "seed", "subset", "settings")
    return json.dumps([record[name] for name in names], sort_keys=True)


def plain(value: Any) -> Any:
    """The value with null for numbers that JSON has no name for."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
