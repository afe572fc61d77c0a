"""What is missing from the results, and why."""

from __future__ import annotations

import math
from typing import NamedTuple

from megagp.report import paper
from megagp.report.entries import Entry, method_name
from megagp.report.records import Run

LISTED = ("table1", "table3", "table5")  # suites that have all of the paper's data sets


class Problem(NamedTuple):
    """Runs of one experiment to which the same thing happened."""

    dataset: str
    suite: str
    method: str
    seeds: str
    kind: str
    reason: str


def problems(entries: list[Entry]) -> list[Problem]:
    """Failed, skipped, not finite, warned: one line for all seeds that share a reason."""
    found: dict[tuple[str, ...], list[int]] = {}
    for entry in entries:
        name = (
            entry.dataset if entry.subset is None else f"{entry.dataset}, subset {entry.subset:,}"
        )
        at = "" if entry.x is None else f", x = {entry.x:g}"
        for run in entry.runs:
            for kind, reason in _happened(run):
                key = (name, entry.suite, f"{method_name(entry.method)}{at}", kind, reason)
                found.setdefault(key, []).append(run.seed)
    order = {kind: i for i, kind in enumerate(("failed", "skipped", "not finite", "warning"))}
    return sorted(
        (
            Problem(dataset, suite, method, ", ".join(map(str, seeds)), kind, reason)
            for (dataset, suite, method, kind, reason), seeds in found.items()
        ),
        key=lambda problem: order[problem.kind],
    )


def absent(entries: list[Entry]) -> list[tuple[str, str]]:
    """For each suite that was run, the paper's data sets without a run that is done."""
    lines = []
    for suite in LISTED:
        done = {entry.dataset for entry in entries if entry.suite == suite and entry.done}
        tried = {entry.dataset for entry in entries if entry.suite == suite}
        missing = [name for name in paper.DATASETS if name not in tried]
        if done and missing:
            lines.append((suite, ", ".join(missing)))
    return lines


def _happened(run: Run) -> list[tuple[str, str]]:
    if run.status != "done":
        return [(run.status, run.reason or "no reason was recorded")]
    bad = [
        name.upper()
        for name in ("rmse", "nll")
        if not math.isfinite(run.numbers.get(name, math.nan))
    ]
    lines = [("not finite", " and ".join(bad))] if bad else []
    return lines + [("warning", warning) for warning in run.warnings]
