"""What the report says, in order, before it is written in any form."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from megagp.report import figures, paper, series
from megagp.report.drawing import Figure
from megagp.report.entries import Entry, gather
from megagp.report.records import Run, read
from megagp.report.tables import SUITES, TIMED, Table, best_table, score_table, suite_table

TITLE = "megagp and “Exact Gaussian Processes on a Million Data Points”"


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it."""

    key: str
    title: str
    texts: list[str]
    tables: list[Table]
    figures: list[Figure]


@dataclass(frozen=True)
class Report:
    """All runs, and the sections made of them."""

    runs: list[Run]
    entries: list[Entry]
    left_out: list[str]
    sections: list[Section]

    @property
    def tables(self) -> list[Table]:
        return [table for section in self.sections for table in section.tables]

    @property
    def figures(self) -> list[Figure]:
        return [figure for section in self.sections for figure in section.figures]


def build(folder: Path) -> Report:
    """Read a folder of results; RecordError where that is not possible."""
    records = read(folder)
    entries = gather(records.runs)
    found = [_glance(entries), *(_suite(entries, suite) for suite in _suites(entries))]
    across = Section("across", "Across data sets", [], [], figures.overview(entries))
    # The plots across data sets stand between the paper's tables and its figures.
    place = next(
        (i for i, s in enumerate(found) if not s.key.startswith(("glance", "table"))), None
    )
    found.insert(len(found) if place is None else place, across)
    kept = [section for section in found if section.tables or section.figures]
    return Report(records.runs, entries, records.left_out, kept)


def _suites(entries: list[Entry]) -> list[str]:
    """The known ones in the paper's order, then any others."""
    return list(dict.fromkeys([*SUITES, *(entry.suite for entry in entries)]))


def _glance(entries: list[Entry]) -> Section:
    tables = [table for table in (best_table(entries), score_table(entries)) if table is not None]
    return Section("glance", "At a glance", [], tables, [])


def _suite(entries: list[Entry], suite: str) -> Section:
    table = suite_table(entries, suite)
    drawn = series.figure(entries, suite)
    texts = [f"{paper.HARDWARE} Ours ran on the machine below."] if suite in TIMED else []
    return Section(
        suite,
        SUITES.get(suite, suite),
        texts,
        [] if table is None else [table],
        [] if drawn is None else [drawn],
    )
