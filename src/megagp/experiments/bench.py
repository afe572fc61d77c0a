"""One run after another: what is done stays done, what fails is noted, the rest goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from megagp.experiments import data
from megagp.experiments.launch import WORKER, execute
from megagp.experiments.machine import circumstances, now
from megagp.experiments.results import Results
from megagp.experiments.run import DONE, FAILED, SKIPPED, Record, Run

# Number of the run, the run, and its record: None as it begins.
Listener: TypeAlias = Callable[[int, Run, Record | None], None]


def pending(runs: Iterable[Run], folder: Path, *, retry: bool = False) -> list[Run]:
    """Those still to be made: not done, and not failed before unless `retry`.

    A set that was not at hand is asked for again.
    """
    over = (DONE,) if retry else (DONE, FAILED)
    known: dict[str, dict[str, Record]] = {}
    found = []
    for run in runs:
        if run.suite not in known:
            known[run.suite] = Results(folder, run.suite).read()
        record = known[run.suite].get(run.key)
        if record is None or record["status"] not in over:
            found.append(run)
    return found


def make(
    runs: Sequence[Run],
    folder: Path,
    *,
    budget: float | None = None,
    retry: bool = False,
    listen: Listener = lambda number, run, record: None,
    command: Sequence[str] = WORKER,
) -> None:
    """Make every run that is pending, one after another, and append its record."""
    reasons: dict[str, str | None] = {}
    for number, run in enumerate(runs, start=1):
        # Another process may have made it meanwhile.
        if not pending([run], folder, retry=retry):
            continue
        results = Results(folder, run.suite)
        if run.dataset not in reasons:
            reasons[run.dataset] = _why_not(run.dataset)
        reason = reasons[run.dataset]
        if reason is not None:
            record = run.record(SKIPPED, reason, **circumstances(now()))
            before = results.read().get(run.key)
            if before is None or (before["status"], before["reason"]) != (SKIPPED, reason):
                results.append(record)
        else:
            listen(number, run, None)
            record = execute(run, budget, command)
            results.append(record)
        listen(number, run, record)


def _why_not(dataset: str) -> str | None:
    """Why a set can't be had, in a sentence; None if it is at hand."""
    try:
        data.require(dataset)
    except (OSError, ValueError) as error:
        return str(error)
    return None
