"""The report's tables as plain data, which the page, Markdown and LaTeX write each in their way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from megagp.report import numerals, paper
from megagp.report.entries import (
    STAND_INS,
    Entry,
    Number,
    Verdict,
    dataset_order,
    labels,
    method_name,
    of_suite,
    verdict,
)

EVIDENCE = ("table1", "table3", "table5")  # suites of accuracies, over which the best is taken
SUITES = {
    "table1": "Table 1: accuracy, one lengthscale",
    "table2": "Table 2: times, one lengthscale",
    "table3": "Table 3: accuracy, a lengthscale for each input",
    "table4": "Table 4: times, a lengthscale for each input",
    "table5": "Table 5: 100 steps of Adam",
    "fig1": "Figure 1: pretraining against 100 steps of Adam",
    "fig2": "Figure 2: more workers",
    "fig3": "Figure 3: more inducing points",
    "fig4": "Figure 4: more data",
    "fig5": "Figure 5: more steps of Adam",
    "smoke": "Smoke test: every method once",
}
TIMED = ("table2", "table4", "table5")
ABSCISSA = {"fig2": "workers", "fig3": "m", "fig4": "n", "fig5": "steps"}


class Column(NamedTuple):
    """A column; those of one `over` share a heading above theirs."""

    label: str
    over: str = ""

    @property
    def name(self) -> str:
        return f"{self.over}, {self.label}" if self.over and self.label else self.over or self.label


class Cell(NamedTuple):
    """A text; `verdict` is ours against the paper, `bold` the better of the two."""

    text: str
    verdict: Verdict | None = None
    bold: bool = False
    note: str = ""


@dataclass(frozen=True)
class Group:
    """Rows about one thing, most often a data set."""

    label: str
    note: str
    rows: list[list[Cell]]


@dataclass(frozen=True)
class Table:
    """`head` names what groups are; every row has a cell for each column."""

    key: str
    title: str
    caption: str
    head: str
    columns: list[Column]
    groups: list[Group]


Writer = Callable[[Number | paper.Value | None], str]
Measure = tuple[str, str, Writer]
RMSE: Measure = ("rmse", "RMSE", numerals.rmse)
NLL: Measure = ("nll", "NLL", numerals.nll)
TRAIN: Measure = ("train", "Training", numerals.duration)
PRECOMPUTE: Measure = ("precompute", "Precomputation", numerals.duration)
PREDICT: Measure = ("predict", "Prediction", numerals.duration)
Plain = tuple[str, str, Callable[[Number | None], str]]
COVERAGE: Plain = ("coverage", "95 % interval holds", numerals.share)
NOISE: Plain = ("noise_variance", "Noise variance", numerals.small)
WORK: list[Plain] = [
    ("partitions", "Partitions", numerals.count),
    ("kernel_evaluations", "Kernel evaluations", numerals.count),
    ("memory_bytes", "Memory", numerals.memory),
]
CONTENT: dict[str, tuple[list[Measure], list[Plain]]] = {
    "table1": ([RMSE, NLL], [COVERAGE, NOISE]),
    "table2": ([TRAIN, PRECOMPUTE, PREDICT], WORK),
    "table3": ([RMSE, NLL], [COVERAGE, NOISE]),
    "table4": ([TRAIN, PRECOMPUTE, PREDICT], WORK),
    "table5": ([RMSE, NLL, TRAIN], [COVERAGE, NOISE]),
}
ORDINARY: tuple[list[Measure], list[Plain]] = ([RMSE, NLL, TRAIN], [COVERAGE])


def suite_table(entries: list[Entry], suite: str) -> Table | None:
    """Every entry of a suite, by data set; None without any."""
    chosen = of_suite(entries, suite)
    if not chosen:
        return None
    measures, plain = CONTENT.get(suite, ORDINARY)
    columns = [Column("method")]
    if any(entry.x is not None for entry in chosen):
        columns.append(Column(ABSCISSA.get(suite, "x")))
    columns.append(Column("seeds"))
    for _, name, _ in measures:
        columns += [Column("ours", name), Column("paper", name)]
    columns += [Column("", name) for _, name, _ in plain]
    groups = []
    for members in _by_dataset(chosen).values():
        rows = [
            _row(entry, label, suite, columns, measures, plain)
            for entry, label in zip(members, labels(members), strict=True)
        ]
        label, note = dataset_label(members)
        if suite in TIMED and members[0].comparable:
            gpus, p = paper.DEVICES[members[0].dataset]
            note = f"{note}; paper: {gpus} GPU{'s' * (gpus > 1)}, p = {p}".removeprefix("; ")
        groups.append(Group(label, note, rows))
    columns, groups = _without_empty(columns, groups)
    return Table(suite, SUITES.get(suite, suite), _caption(suite), "data set", columns, groups)


def best_table(entries: list[Entry]) -> Table | None:
    """The lowest RMSE and NLL of each data set, ours and the paper's, over tables 1, 3 and 5."""
    whole = [entry for entry in entries if entry.comparable and entry.suite in EVIDENCE]
    groups = []
    for (dataset, _), members in _by_dataset(whole).items():
        cells = []
        for quantity, _, written in (RMSE, NLL):
            ours = _lowest([e for e in members if paper.family(e.method) == "exact"], quantity)
            boosted = _lowest([e for e in members if e.method == "lightgbm"], quantity)
            theirs = paper.best(quantity, dataset)
            mark = verdict(ours[0] if ours else None, theirs[0] if theirs else None)
            cells.append(_best_cell(ours, mark, written))
            if theirs:
                origin = f"{_table_number(theirs[1])}, {method_name(theirs[2])}"
                cells.append(Cell(written(theirs[0]), None, mark is Verdict.WORSE, origin))
            else:
                cells.append(Cell(numerals.NONE))
            if quantity == "rmse":
                cells.append(Cell(written(boosted[0] if boosted else None)))
        if any(cell.text != numerals.NONE for cell in (cells[0], cells[3])):
            groups.append(Group(*dataset_label(members), [cells]))
    if not groups:
        return None
    columns = [
        Column("ours", "Lowest RMSE"),
        Column("paper", "Lowest RMSE"),
        Column("LightGBM", "Lowest RMSE"),
        Column("ours", "Lowest NLL"),
        Column("paper", "Lowest NLL"),
    ]
    columns, groups = _without_empty(columns, groups)
    caption = (
        "For each data set the lowest mean over tables 1, 3 and 5: ours over all exact GPs, the "
        "paper's over all its methods. Both sides are chosen with the test scores in view, ours "
        "no more than the paper's."
    )
    return Table("best", "The best of each data set", caption, "data set", columns, groups)


def score_table(entries: list[Entry]) -> Table | None:
    """How often we are better, even and worse, by suite and method."""
    groups = []
    for suite in EVIDENCE:
        chosen = [entry for entry in of_suite(entries, suite) if entry.comparable]
        rows = []
        for method in dict.fromkeys(entry.method for entry in chosen):
            same = [entry for entry in chosen if entry.method == method]
            tally = [cell for name in ("rmse", "nll") for cell in _tally(same, name)]
            if any(cell.text != numerals.NONE for cell in tally):
                rows.append([Cell(method_name(method)), *tally])
        if rows:
            groups.append(Group(_table_number(suite), "", rows))
    if not groups:
        return None
    columns = [Column("method")]
    columns += [Column(mark.value, name) for name in ("RMSE", "NLL") for mark in Verdict]
    caption = (
        "Data sets on which our mean is better than the paper's for the same method, even, or "
        "worse. Even: equal to three decimals, or apart by no more than both standard deviations "
        "together."
    )
    return Table("score", "Better, even, worse", caption, "suite", columns, groups)


def _tally(entries: list[Entry], quantity: str) -> list[Cell]:
    marks = [verdict(entry.number(quantity), entry.published(quantity)) for entry in entries]
    if not any(marks):
        return [Cell(numerals.NONE)] * len(Verdict)
    return [Cell(str(marks.count(mark))) for mark in Verdict]


def dataset_label(entries: list[Entry]) -> tuple[str, str]:
    """The name, marked where it is a part or a stand-in, and its sizes beside the paper's."""
    dataset, subsets = entries[0].dataset, {entry.subset for entry in entries}
    known = paper.DATASETS.get(dataset)
    notes = []
    for name, theirs in (("n_train", known and known.n), ("d", known and known.d)):
        sizes = {value.mean for entry in entries if (value := entry.number(name)) is not None}
        if len(sizes) == 1:
            (ours,) = sizes
            other = "" if theirs in (None, ours) else f" (paper {theirs:,})"
            notes.append(f"{name[0]} = {numerals.plain(ours)}{other}")
    if known is None:
        stands = STAND_INS.get(dataset)
        notes.append(f"not in the paper; stands in for {stands}" if stands else "not in the paper")
    part = "" if subsets == {None} else ", subset" if len(subsets) == 1 else ", subsets"
    return f"{dataset}{part}", ", ".join(notes)


def _row(
    entry: Entry,
    label: str,
    suite: str,
    columns: list[Column],
    measures: list[Measure],
    plain: list[Plain],
) -> list[Cell]:
    cells = [Cell(label)]
    if len(columns) > 1 and columns[1].label != "seeds":
        cells.append(Cell(numerals.NONE if entry.x is None else numerals.plain(entry.x)))
    done, tried = len(entry.done), len(entry.runs)
    cells.append(Cell(str(done) if done == tried else f"{done} of {tried}"))
    for quantity, _, written in measures:
        ours, theirs = entry.number(quantity), entry.published(quantity, suite)
        mark = verdict(ours, theirs) if entry.comparable else None
        text = written(ours) if entry.done else entry.outcome()
        cells.append(Cell(text, mark, mark is Verdict.BETTER))
        cells.append(Cell(written(theirs), None, mark is Verdict.WORSE))
    cells += [Cell(written(entry.number(quantity))) for quantity, _, written in plain]
    return cells


def _by_dataset(entries: Iterable[Entry]) -> dict[tuple[str, str], list[Entry]]:
    """By name and part; a series over n is together, though each point is a subset of its own."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in sorted(entries, key=lambda e: dataset_order(e.dataset)):
        part = "" if entry.subset is None else f"subset {entry.subset}"
        if part and entry.subset == entry.x:
            part = "subsets"
        groups.setdefault((entry.dataset, part), []).append(entry)
    return groups


def _lowest(entries: list[Entry], quantity: str) -> tuple[Number, Entry] | None:
    found = [
        (value, entry)
        for entry in entries
        if (value := entry.number(quantity)) is not None and value.mean == value.mean
    ]
    return min(found, key=lambda each: each[0].mean) if found else None


def _best_cell(ours: tuple[Number, Entry] | None, mark: Verdict | None, written: Writer) -> Cell:
    if ours is None:
        return Cell(numerals.NONE)
    value, entry = ours
    seeds = f"{value.seeds} seed{'s' if value.seeds > 1 else ''}"
    origin = f"{_table_number(entry.suite)}, {method_name(entry.method)}, {seeds}"
    return Cell(written(value), mark, mark is Verdict.BETTER, origin)


def _without_empty(columns: list[Column], groups: list[Group]) -> tuple[list[Column], list[Group]]:
    """Without columns that have nothing to show."""
    kept = [
        i
        for i in range(len(columns))
        if any(row[i].text != numerals.NONE for group in groups for row in group.rows)
    ]
    narrowed = [
        Group(group.label, group.note, [[row[i] for i in kept] for row in group.rows])
        for group in groups
    ]
    left = [columns[i] for i in kept]
    compared = {column.over for column in left if column.label == "paper"}
    return [
        Column("", c.over) if c.label == "ours" and c.over not in compared else c for c in left
    ], narrowed


def _table_number(suite: str) -> str:
    return SUITES.get(suite, suite).split(":")[0]


def _caption(suite: str) -> str:
    source = paper.SOURCES.get(suite)
    against = "" if source is None else f" The paper's column is its {source.table}: {source.what}."
    return f"Mean ± standard deviation over seeds.{against}"
