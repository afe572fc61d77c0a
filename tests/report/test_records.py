"""Reading results: what is kept, what is refused, and how that is said."""

import json
import math

import pytest

from megagp.report.records import RecordError, read
from report import synthetic
from report.synthetic import record


def test_the_newest_line_of_a_run_counts(tmp_path):
    old = record("table1", "pol", "exact", rmse=1.0, finished="2026-02-01T10:00:00+00:00")
    new = record("table1", "pol", "exact", rmse=2.0, finished="2026-02-01T12:30:00+02:00")
    synthetic.write(tmp_path, [new, old, record("table1", "pol", "exact", 1, rmse=3.0)])
    runs = read(tmp_path).runs
    assert sorted(run.numbers["rmse"] for run in runs) == [2.0, 3.0]


def test_without_times_the_last_line_counts(tmp_path):
    lines = [
        record("table1", "pol", "exact", rmse=r, finished=None, started=None) for r in (1.0, 2.0)
    ]
    (run,) = read(synthetic.write(tmp_path, lines)).runs
    assert run.numbers["rmse"] == 2.0


def test_other_settings_subsets_and_x_are_other_runs(tmp_path):
    lines = [
        record("fig3", "pol", "sgpr"),
        record("fig3", "pol", "sgpr", x=16),
        record("fig3", "pol", "sgpr", subset=10),
        record("fig3", "pol", "sgpr", settings={"ard": True}),
    ]
    assert len(read(synthetic.write(tmp_path, lines)).runs) == 4


def test_nothing_to_read(tmp_path):
    with pytest.raises(RecordError, match=r"expected a folder of \.jsonl files"):
        read(tmp_path / "none")
    with pytest.raises(RecordError, match=r"got none; make some with megagp bench"):
        read(tmp_path)
    (tmp_path / "table1.jsonl").write_text("\n\n")
    with pytest.raises(RecordError, match=r"empty files: table1\.jsonl"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": "well"}, "status: expected one of done, failed, skipped, got 'well'"),
        ({"dataset": 3}, "dataset: expected text, got 3"),
        ({"seed": "a"}, "seed: expected an integer, got 'a'"),
        ({"rmse": "low"}, "rmse: expected a number, got 'low'"),
        ({"seconds": {"train": []}}, "seconds.train: expected a number"),
        ({"calibration": [[1, 2, 3]]}, "calibration: expected pairs"),
        ({"trace": [1]}, "trace: expected objects"),
        ({"finished": "yesterday"}, "finished: expected a time such as"),
        ({"residuals": 1.0}, "residuals: expected a list"),
    ],
)
def test_a_wrong_entry_is_named_with_file_and_line(tmp_path, change, said):
    good, bad = record("table1", "pol", "exact"), {**record("table1", "pol", "sgpr"), **change}
    synthetic.write(tmp_path, [good, bad])
    with pytest.raises(RecordError) as error:
        read(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'table1.jsonl'}, line 2: {said}")


def test_a_torn_line_is_left_out_and_said_to_be(tmp_path):
    line = json.dumps(record("table1", "pol", "exact"))
    (tmp_path / "table1.jsonl").write_text(f"{line[:50]}\n{line}\n")
    found = read(tmp_path)
    assert len(found.runs) == 1
    (said,) = found.left_out
    assert said.startswith(f"{tmp_path / 'table1.jsonl'}, line 1: expected JSON")


def test_null_in_a_list_is_not_a_number(tmp_path):
    (run,) = read(synthetic.write(tmp_path, [record("table1", "pol", "exact")])).runs
    assert math.isnan(run.residuals[2])
    assert run.residuals[3] == 0.001
