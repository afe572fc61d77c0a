"""Stored runs: every line of every .jsonl file in a folder, checked, the newest of each run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

STATUSES = ("done", "failed", "skipped")
NUMBERS = (
    "n_train",
    "n_test",
    "d",
    "subset",
    "rmse",
    "nll",
    "coverage",
    "memory_bytes",
    "partitions",
    "kernel_evaluations",
    "x",
)
TIMES = ("train", "precompute", "predict")
# Seeds differ in these and in nothing else.
SEEDS = ("seed", "random_state")


class RecordError(ValueError):
    """A file of results that can't be used as it is."""


@dataclass(frozen=True)
class Run:
    """One run; `numbers` has every figure that was recorded, by name."""

    suite: str
    dataset: str
    method: str
    seed: int
    status: str
    reason: str
    settings: dict[str, Any]
    numbers: dict[str, float]
    calibration: list[tuple[float, float]]
    residuals: list[float]
    lengthscale: list[float]
    trace: list[dict[str, float]]
    warnings: list[str]
    machine: dict[str, Any]
    versions: dict[str, Any]
    git: str
    finished: datetime | None

    @property
    def setup(self) -> tuple[Any, ...]:
        """What is the same for all seeds of an experiment."""
        settings = {key: value for key, value in self.settings.items() if key not in SEEDS}
        shape = json.dumps(settings, sort_keys=True)
        whole = (self.numbers.get("subset"), self.numbers.get("x"))
        return (self.suite, self.dataset, self.method, *whole, shape)


class Records(NamedTuple):
    """The newest line of each run, and what was left out."""

    runs: list[Run]
    left_out: list[str]


def read(folder: Path) -> Records:
    """In the order of the files' names and lines; RecordError names the file and the line.

    A line that breaks off, as a killed process leaves it, is left out, and said to be.
    """
    if not folder.is_dir():
        raise RecordError(f"{folder}: expected a folder of .jsonl files, got none; check the name")
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise RecordError(
            f"{folder}: expected .jsonl files of results, got none; make some with megagp bench"
        )
    newest: dict[tuple[Any, ...], Run] = {}
    left_out: list[str] = []
    for file in files:
        for run in _lines(file, left_out):
            key = (*run.setup, run.seed)
            # Without times, or with equal ones, the later line is the newer.
            if key not in newest or _when(run) >= _when(newest[key]):
                newest[key] = run
    if not newest:
        got = "; ".join(left_out) or f"empty files: {', '.join(file.name for file in files)}"
        raise RecordError(f"{folder}: expected at least one run, got {got}")
    return Records(list(newest.values()), left_out)


def _when(run: Run) -> datetime:
    return run.finished or datetime.min.replace(tzinfo=timezone.utc)


def _lines(file: Path, left_out: list[str]) -> Iterator[Run]:
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield parse(json.loads(line))
            except json.JSONDecodeError as error:
                left_out.append(f"{file}, line {number}: expected JSON, got {error}")
            except ValueError as error:
                raise RecordError(
                    f"{file}, line {number}: {error}; mend or delete that line"
                ) from None


def parse(raw: Any) -> Run:
    """A run from one line's JSON; ValueError says which entry is wrong."""
    if not isinstance(raw, dict):
        raise ValueError(f"expected an object, got {_short(raw)}")
    status = _entry(raw, "status", str)
    if status not in STATUSES:
        raise ValueError(f"status: expected one of {', '.join(STATUSES)}, got {_short(status)}")
    hyperparameters = _entry(raw, "hyperparameters", dict, {})
    times = {
        name: value for name, value in _entry(raw, "seconds", dict, {}).items() if name in TIMES
    }
    scales = hyperparameters.get("lengthscale")
    return Run(
        suite=_entry(raw, "suite", str),
        dataset=_entry(raw, "dataset", str),
        method=_entry(raw, "method", str),
        seed=_entry(raw, "seed", int, 0),
        status=status,
        reason=_entry(raw, "reason", str, ""),
        settings=_entry(raw, "settings", dict, {}),
        numbers={
            **_numbers({name: raw.get(name) for name in NUMBERS}, ""),
            **_numbers(times, "seconds."),
            **_numbers(
                {"noise_variance": hyperparameters.get("noise_variance")}, "hyperparameters."
            ),
        },
        calibration=_pairs(raw),
        residuals=_list(raw.get("residuals"), "residuals"),
        lengthscale=_list(
            [scales] if isinstance(scales, int | float) else scales, "hyperparameters.lengthscale"
        ),
        trace=_trace(raw),
        warnings=[str(warning) for warning in _entry(raw, "warnings", list, [])],
        machine=_entry(raw, "machine", dict, {}),
        versions=_entry(raw, "versions", dict, {}),
        git=str(raw.get("git") or ""),
        finished=_time(raw),
    )


def _entry(raw: dict[str, Any], name: str, kind: type, default: Any = None) -> Any:
    value = raw.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name}: expected {KINDS[kind]}, got {_short(value)}")
    return value


def _numbers(raw: dict[str, Any], prefix: str) -> dict[str, float]:
    return {
        name: _number(value, f"{prefix}{name}") for name, value in raw.items() if value is not None
    }


def _number(value: Any, name: str) -> float:
    """A number; NaN and infinity are numbers too, and are shown as such."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name}: expected a number, got {_short(value)}")
    return float(value)


def _list(raw: Any, name: str) -> list[float]:
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise ValueError(f"{name}: expected a list of numbers, got {_short(raw)}")
    # JSON has no NaN: writers put null.
    return [math.nan if value is None else _number(value, name) for value in raw]


def _pairs(raw: dict[str, Any]) -> list[tuple[float, float]]:
    pairs = [_list(pair, "calibration") for pair in _entry(raw, "calibration", list, [])]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(
            f"calibration: expected pairs [nominal, observed], got {_short(raw['calibration'])}"
        )
    return [(nominal, observed) for nominal, observed in pairs]


def _trace(raw: dict[str, Any]) -> list[dict[str, float]]:
    points = _entry(raw, "trace", list, [])
    if not all(isinstance(point, dict) for point in points):
        raise ValueError(f"trace: expected objects, got {_short(points)}")
    kept = ("seconds", "step", "rmse", "nll")
    return [_numbers({name: point.get(name) for name in kept}, "trace.") for point in points]


def _time(raw: dict[str, Any]) -> datetime | None:
    text = raw.get("finished") or raw.get("started")
    if text is None:
        return None
    try:
        # Python 3.10 does not read a Z.
        found = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        raise ValueError(
            f"finished: expected a time such as 2026-01-31T12:00:00+00:00, got {_short(text)}"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


KINDS: dict[type, str] = {str: "text", int: "an integer", dict: "an object", list: "a list"}
