"""megagp bench: options, what would run, and a table of what has."""

import pytest
from typer.testing import CliRunner

from megagp.cli.app import app
from megagp.experiments import Results, Run, runs

SECONDS = {"train": 60.0, "precompute": 0.5, "predict": 0.1}


def invoke(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments])


def test_list_shows_what_would_run(tmp_path):
    done = runs("table1", datasets=["pol"], methods=["exact"], seeds=[0])[0]
    Results(tmp_path, "table1").append(done.record("done"))
    found = invoke(
        "table2", "--data", "pol", "--methods", "exact,sgpr", "--seeds", "0", "--list",
        "-o", str(tmp_path),
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    assert found.stdout.splitlines() == ["pol, sgpr, seed 0, ard = False", "1 of 2 runs to make"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table9"], "suite: expected one of"),
        (["table1", "--methods", "magic"], "methods: expected some of"),
        (["table1", "--seeds", "one"], "--seeds: expected whole numbers"),
        (["table1", "--set", "mean"], "--set: expected name=value"),
    ],
)
def test_mistakes_are_one_line(arguments, message):
    found = invoke(*arguments)
    assert found.exit_code == 1
    assert message in found.stderr


def test_runs_and_their_table(tmp_path, monkeypatch):
    def fake(chosen, folder, *, budget, retry, listen):
        assert (budget, retry) == (60.0, True)
        for number, run in enumerate(chosen, start=1):
            listen(number, run, None)
            done = run.record("done", n_train=9600, rmse=0.1 + run.seed, nll=-0.5, seconds=SECONDS)
            record = run.record("failed", "no luck") if run.seed == 2 else done
            Results(folder, run.suite).append(record)
            listen(number, run, record)

    monkeypatch.setattr("megagp.experiments.bench.make", fake)
    found = invoke(
        "table3", "--data", "pol", "--methods", "exact", "--set", "mean=linear", "--set",
        "rtol=0.1", "--budget", "60", "--retry", "-o", str(tmp_path),
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "failed: no luck" in found.stderr
    assert "RMSE 0.1, NLL -0.5, 1:01 min" in found.stderr
    assert "0.600 ± 0.707" in found.stdout
    assert "2 of 3" in found.stdout
    (first, *_) = Results(tmp_path, "table3").read().values()
    assert first["settings"] == {"ard": True, "mean": "linear", "rtol": 0.1}


def test_a_run_in_words():
    assert str(Run("fig4", "pol", "exact", 1, 600, {"ard": False})) == (
        "pol, exact, seed 1, subset = 600, ard = False"
    )
