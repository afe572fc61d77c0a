"""Runs of one experiment over several seeds: means, standard deviations, and who is better."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from megagp.report import paper
from megagp.report.records import SEEDS, Run

METHOD_NAMES = {
    "exact": "exact GP",
    "exact-best": "exact GP, best quality",
    "exact-paper": "exact GP, paper's recipe",
    "exact-adam": "exact GP, 100 steps of Adam",
    "sgpr": "SGPR",
    "svgp": "SVGP",
    "lightgbm": "LightGBM",
}
STAND_INS = {"gebco_kg_2m": "3droad", "condat_lags": "song", "fhw_lags": "slice"}
# A suite of times shows the runs of the suite of accuracies with the same model.
VIEWS = {"table2": "table1", "table4": "table3"}


class Number(NamedTuple):
    """Mean over seeds, and the standard deviation (n - 1) of two seeds and more; not rounded."""

    mean: float
    sd: float | None
    seeds: int


class Verdict(Enum):
    """Which mean is lower, and whether by more than the two standard deviations together."""

    BETTER = "better"
    EVEN = "even"
    WORSE = "worse"


@dataclass(frozen=True)
class Entry:
    """One experiment: the same data set, method and settings, for every seed that was run."""

    suite: str
    dataset: str
    method: str
    subset: int | None
    x: float | None
    settings: dict[str, Any]
    runs: tuple[Run, ...]

    @property
    def done(self) -> list[Run]:
        return [run for run in self.runs if run.status == "done"]

    @property
    def comparable(self) -> bool:
        """Whether the paper has this data set, and this is all of it."""
        return self.dataset in paper.DATASETS and self.subset is None

    def number(self, quantity: str) -> Number | None:
        """Over the seeds that are done; not finite if one of them has no finite number."""
        values = [run.numbers.get(quantity, math.nan) for run in self.done]
        known = any(quantity in run.numbers for run in self.done)
        return summarise(values) if known else None

    def published(self, quantity: str, suite: str | None = None) -> paper.Value | None:
        return paper.published(suite or self.suite, quantity, self.dataset, self.method)

    def outcome(self) -> str:
        """Why there is no number: the worst that happened to a run."""
        statuses = {run.status for run in self.runs}
        return next((s for s in ("failed", "skipped") if s in statuses), "—")


def summarise(values: Iterable[float]) -> Number | None:
    """Plainly: the mean, and the root of Σ(v - mean)² / (count - 1)."""
    found = list(values)
    if not found:
        return None
    mean = sum(found) / len(found)
    if len(found) == 1:
        return Number(mean, None, 1)
    square = sum((value - mean) ** 2 for value in found) / (len(found) - 1)
    return Number(mean, math.sqrt(square), len(found))


def verdict(ours: Number | None, theirs: Number | paper.Value | None) -> Verdict | None:
    """Lower is better; even if equal to three decimals or within both deviations together."""
    if ours is None or theirs is None or not math.isfinite(ours.mean):
        return None
    spread = (ours.sd or 0.0) + (theirs.sd or 0.0)
    gap = ours.mean - theirs.mean
    if round(ours.mean, 3) == round(theirs.mean, 3) or abs(gap) <= spread:
        return Verdict.EVEN
    return Verdict.BETTER if gap < 0 else Verdict.WORSE


def gather(runs: Iterable[Run]) -> list[Entry]:
    """Entries by suite, then the paper's order of data sets, then method and x."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(run.setup, []).append(run)
    return sorted((_entry(group) for group in groups.values()), key=_order)


def of_suite(entries: list[Entry], suite: str) -> list[Entry]:
    """The suite's own entries; for one of times also those it is a view of."""
    own = [entry for entry in entries if entry.suite == suite]
    had = {(entry.dataset, entry.method, entry.subset) for entry in own}
    viewed = [
        entry
        for entry in entries
        if entry.suite == VIEWS.get(suite)
        and (entry.dataset, entry.method, entry.subset) not in had
    ]
    return sorted(own + viewed, key=lambda entry: _order(entry)[1:])


def method_name(method: str) -> str:
    return METHOD_NAMES.get(method, method)


def labels(entries: list[Entry]) -> list[str]:
    """A name for each entry: its method, and the settings in which it differs from its like."""
    return [_label(entry, entries) for entry in entries]


def _label(entry: Entry, among: list[Entry]) -> str:
    alike = [
        other
        for other in among
        if (other.suite, other.dataset, other.method, other.subset, other.x)
        == (entry.suite, entry.dataset, entry.method, entry.subset, entry.x)
    ]
    keys = sorted({key for other in alike for key in other.settings} - set(SEEDS))
    differing = [key for key in keys if len({repr(other.settings.get(key)) for other in alike}) > 1]
    shown = [f"{key} {entry.settings.get(key, 'unset')}" for key in differing]
    return ", ".join([method_name(entry.method), *shown])


def _entry(runs: list[Run]) -> Entry:
    first = runs[0]
    subset = first.numbers.get("subset")
    # A subset of more points than there are is the whole set.
    sizes = [run.numbers["n_train"] for run in runs if "n_train" in run.numbers]
    if subset is not None and sizes and max(sizes) < subset:
        subset = None
    return Entry(
        suite=first.suite,
        dataset=first.dataset,
        method=first.method,
        subset=None if subset is None else int(subset),
        x=first.numbers.get("x"),
        settings=first.settings,
        runs=tuple(sorted(runs, key=lambda run: run.seed)),
    )


def _order(entry: Entry) -> tuple[Any, ...]:
    return (
        entry.suite,
        dataset_order(entry.dataset),
        -1 if entry.subset is None else entry.subset,
        _place(entry.method, list(METHOD_NAMES)),
        -1.0 if entry.x is None else entry.x,
        repr(sorted(entry.settings.items())),
    )


def dataset_order(dataset: str) -> tuple[int, str]:
    return _place(dataset, list(paper.DATASETS))


def _place(name: str, known: list[str]) -> tuple[int, str]:
    return (known.index(name) if name in known else len(known), name)
