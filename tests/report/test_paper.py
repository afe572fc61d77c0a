"""The transcription of the paper's tables against a second reading, from the paper's source."""

import os
import re
from pathlib import Path

import pytest

from megagp.report import paper

UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "hr": 3600.0, "days": 86_400.0}
# Which columns of a table hold what; the others are n, d, GPUs, partitions and gaps.
LAYOUT = {
    "table1": ("tab:no_ard_rmse_nll", {"rmse": (3, 4, 5), "nll": (7, 8, 9)}, None),
    "table2": (
        "tab:no_ard_timings",
        {"train": (1, 2, 3), "precompute": (7,), "predict": (9, 10, 11)},
        (4, 5),
    ),
    "table3": ("tab:ard_rmse_nll", {"rmse": (3, 4, 5), "nll": (7, 8, 9)}, None),
    "table4": ("tab:ard_timings", {"train": (1, 2, 3)}, (4, 5)),
    "table5": ("tab:main_table_old", {"rmse": (3, 4, 5), "train": (7, 8, 9)}, (10, 11)),
}


@pytest.fixture(scope="module")
def source():
    path = os.environ.get("MEGAGP_PAPER")
    if path is None:
        pytest.skip("set MEGAGP_PAPER to the paper's .tex file")
    return Path(path).read_text()


def rows_of(source, label):
    """The cells of a table's body, by the paper's name of the data set."""
    body = source[source.index(f"\\label{{{label}}}") :]
    body = body[body.index("\\midrule") : body.index("\\bottomrule")].replace("\\midrule", "")
    rows = [[cell.strip() for cell in row.split("&")] for row in body.split("\\\\") if row.strip()]
    return {row[0]: row[1:] for row in rows}


def plain(cell):
    cell = re.sub(r"\\(mathbf|textbf|bf|!)", " ", cell)
    return re.sub(r"[{}$*,\s]|\\", "", cell.replace("\\pm", "±"))


def number(cell):
    """(mean, sd), in seconds where the cell has a unit."""
    cell = plain(cell)
    if set(cell) == {"-"}:
        return None
    found = re.fullmatch(r"(-?[\d.]+)([a-z]*)(?:±([\d.]+))?", cell)
    assert found, cell
    scale = UNITS[found[2]] if found[2] else 1.0
    return float(found[1]) * scale, None if found[3] is None else float(found[3])


@pytest.mark.parametrize("suite", LAYOUT)
def test_every_figure_is_the_papers(source, suite):
    label, columns, devices = LAYOUT[suite]
    rows = rows_of(source, label)
    assert list(rows) == [known.name for known in paper.DATASETS.values()]
    for dataset, known in paper.DATASETS.items():
        row = [known.name, *rows[known.name]]
        for quantity, where in columns.items():
            for method, column in zip(paper.METHODS, where, strict=False):
                ours = paper.published(suite, quantity, dataset, method)
                theirs = number(row[column])
                assert (ours is None) == (theirs is None), (dataset, quantity, method)
                if ours is not None:
                    assert ours.mean == pytest.approx(theirs[0], rel=1e-12)
                    assert ours.sd == theirs[1]
        if devices is not None:
            assert paper.DEVICES[dataset] == tuple(int(plain(row[c])) for c in devices)
        if devices is None or suite == "table5":
            assert (known.n, known.d) == (int(plain(row[1])), int(plain(row[2])))


def test_every_table_has_every_data_set():
    for rows in paper.PUBLISHED.values():
        assert list(rows) == list(paper.DATASETS)
        assert all(len(row) == len(paper.METHODS) for row in rows.values())


def test_the_best_over_all_tables():
    """As the project's own list of targets has them."""
    expected = {
        "pol": (0.088, -0.817),
        "elevators": (0.374, 0.486),
        "bike": (0.043, -1.323),
        "kin40k": (0.080, -0.755),
        "protein": (0.511, 0.915),
        "keggdirected": (0.078, -1.163),
        "keggundirected": (0.118, -1.049),
        "houseelectric": (0.049, -1.010),
    }
    for dataset, (rmse, nll) in expected.items():
        assert paper.best("rmse", dataset)[0].mean == rmse
        assert paper.best("nll", dataset)[0].mean == nll


def test_kinds_of_exact_gps_share_a_column():
    assert paper.published("table1", "rmse", "pol", "exact-paper") == (0.151, 0.012)
    assert paper.published("table1", "rmse", "pol", "lightgbm") is None
    assert paper.published("table1", "rmse", "unknown", "exact") is None
    assert paper.published("table2", "precompute", "pol", "sgpr") is None
