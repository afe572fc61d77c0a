"""Means, deviations, verdicts and fitted slopes against plain NumPy."""

import math

import numpy as np
import pytest

from megagp.report import numerals, power_law
from megagp.report.entries import Number, Verdict, gather, labels, of_suite, summarise, verdict
from megagp.report.paper import Value
from megagp.report.records import parse
from megagp.report.tables import best_table, score_table, suite_table
from report.synthetic import record


def entries(*records):
    return gather(parse(each) for each in records)


def test_mean_and_deviation_are_the_plain_ones():
    values = [0.31, 0.27, 0.402]
    found = summarise(values)
    assert found.mean == pytest.approx(np.mean(values), rel=1e-14)
    assert found.sd == pytest.approx(np.std(values, ddof=1), rel=1e-14)
    assert found.seeds == 3
    assert summarise([1.5]) == (1.5, None, 1)
    assert summarise([]) is None
    assert math.isnan(summarise([1.0, math.nan]).mean)


def test_the_table_shows_mean_and_deviation_over_seeds():
    values = [0.1512, 0.1493, 0.1601]
    found = entries(*(record("table1", "pol", "exact", i, rmse=v) for i, v in enumerate(values)))
    table = suite_table(found, "table1")
    names = [column.name for column in table.columns]
    row = table.groups[0].rows[0]
    expected = f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"
    assert row[names.index("RMSE, ours")].text == expected
    assert row[names.index("RMSE, paper")].text == "0.151 ± 0.012"
    assert row[names.index("seeds")].text == "3"


def test_a_seed_without_a_number_is_not_passed_over():
    found = entries(
        record("table1", "pol", "exact", 0, rmse=0.1),
        record("table1", "pol", "exact", 1, rmse=None),
    )
    assert "not finite" in [cell.text for cell in suite_table(found, "table1").groups[0].rows[0]]


def test_failed_seeds_are_counted():
    failed = record("table1", "pol", "exact", 1, status="failed", reason="x")
    found = entries(record("table1", "pol", "exact", 0), failed)
    texts = [cell.text for cell in suite_table(found, "table1").groups[0].rows[0]]
    assert "1 of 2" in texts
    texts = [cell.text for cell in suite_table(entries(failed), "table1").groups[0].rows[0]]
    assert "failed" in texts


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (Number(0.1, 0.01, 3), Value(0.2, 0.01), Verdict.BETTER),
        (Number(0.3, 0.01, 3), Value(0.2, 0.01), Verdict.WORSE),
        (Number(0.21, 0.01, 3), Value(0.2, 0.01), Verdict.EVEN),
        (Number(0.2004, None, 1), Value(0.2), Verdict.EVEN),
        (Number(-1.0, None, 1), Value(-0.9), Verdict.BETTER),
        (Number(math.nan, None, 1), Value(0.2), None),
        (Number(0.1, None, 1), None, None),
        (None, Value(0.1), None),
    ],
)
def test_verdicts(ours, theirs, expected):
    assert verdict(ours, theirs) is expected


def test_subsets_and_stand_ins_get_no_verdict():
    found = entries(
        record("table1", "houseelectric", "exact", subset=5000, rmse=1e-3, n_train=5000, d=11),
        record("table1", "gebco_kg_2m", "exact", rmse=1e-3),
    )
    table = suite_table(found, "table1")
    assert not [c for g in table.groups for row in g.rows for c in row if c.verdict or c.bold]
    part, other = table.groups
    assert part.label == "houseelectric, subset"
    assert part.note == "n = 5,000 (paper 1,311,539), d = 11 (paper 9)"
    assert "not in the paper; stands in for 3droad" in other.note
    assert best_table(found) is None
    assert score_table(found) is None


def test_a_subset_larger_than_the_set_is_the_whole_set():
    (whole,) = entries(record("table1", "pol", "exact", subset=50_000, n_train=9_600))
    assert whole.comparable
    (part,) = entries(record("table1", "pol", "exact", subset=5_000, n_train=5_000))
    assert not part.comparable


def test_the_best_is_taken_over_suites_on_both_sides():
    found = entries(
        record("table1", "pol", "exact", rmse=0.2, nll=-1.0),
        record("table3", "pol", "exact", rmse=0.08, nll=1.0),
        record("table3", "pol", "sgpr", rmse=0.01, nll=-9.0),
        record("table3", "pol", "lightgbm", rmse=0.1),
    )
    (group,) = best_table(found).groups
    texts = [cell.text for cell in group.rows[0]]
    assert texts == ["0.080", "0.088 ± 0.003", "0.100", "−1.000", "−0.817 ± 0.005"]


def test_tables_of_times_view_those_of_accuracy():
    found = entries(
        record("table1", "pol", "exact", seconds={"train": 3.0}),
        record("table1", "pol", "sgpr", seconds={"train": 4.0}),
        record("table2", "pol", "exact", seconds={"train": 5.0}),
    )
    assert [entry.number("train").mean for entry in of_suite(found, "table2")] == [5.0, 4.0]
    assert suite_table(found, "table2").groups[0].note.endswith("; paper: 1 GPU, p = 1")


def test_rows_that_differ_in_settings_say_so():
    found = entries(
        record("table1", "pol", "exact", settings={"mean": "linear", "ard": False}),
        record("table1", "pol", "exact", settings={"mean": "constant", "ard": False}),
    )
    assert labels(found) == ["exact GP, mean constant", "exact GP, mean linear"]


def test_slope_of_a_known_power_law():
    n = [1e3, 5e3, 2e4, 1e5]
    law = power_law.fit(n, [3e-7 * x**1.83 for x in n])
    assert law.slope == pytest.approx(1.83, rel=1e-12)
    assert law.factor == pytest.approx(3e-7, rel=1e-10)
    assert law(1e4) == pytest.approx(3e-7 * 1e4**1.83, rel=1e-10)


def test_slope_is_that_of_least_squares_on_logarithms():
    draw = np.random.default_rng(0)
    x, y = draw.uniform(1, 100, 20), draw.uniform(1, 100, 20)
    slope, level = np.polyfit(np.log(x), np.log(y), 1)
    law = power_law.fit([*x, 3.0, 4.0], [*y, 0.0, math.nan])
    assert law.slope == pytest.approx(slope, rel=1e-10)
    assert law.factor == pytest.approx(math.exp(level), rel=1e-10)


def test_no_slope_through_one_size():
    assert power_law.fit([10.0, 10.0], [1.0, 2.0]) is None
    assert power_law.fit([], []) is None


@pytest.mark.parametrize(
    ("write", "value", "expected"),
    [
        (numerals.rmse, Number(0.15149, 0.0123, 3), "0.151 ± 0.012"),
        (numerals.rmse, Number(0.00234, 0.00011, 3), "0.0023 ± 0.0001"),
        (numerals.rmse, Number(0.0, None, 1), "0.000"),
        (numerals.rmse, Number(math.inf, None, 1), "not finite"),
        (numerals.nll, Number(-0.0012, None, 1), "−0.001"),
        (numerals.nll, None, "—"),
        (numerals.duration, Value(0.006), "6.0 ms"),
        (numerals.duration, Value(41.5, 1.1), "41.5 ± 1.1 s"),
        (numerals.duration, Value(118 * 60), "118 min"),
        (numerals.duration, Value(3.29 * 86400), "3.29 d"),
        (numerals.duration, Number(0.0, None, 1), "—"),
        (numerals.share, Number(0.9512, 0.002, 3), "95.1 ± 0.2 %"),
        (numerals.count, Number(2.5e9, None, 1), "2.50e9"),
        (numerals.memory, Number(2.5e9, None, 1), "2.5 GB"),
    ],
)
def test_numbers_as_text(write, value, expected):
    assert write(value) == expected
