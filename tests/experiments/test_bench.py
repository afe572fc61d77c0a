"""Runs in processes of their own, lines that survive, and what a second start does."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest

from megagp.experiments import Results, Run
from megagp.experiments.bench import make, pending
from megagp.experiments.launch import WORKER, execute
from megagp.experiments.run import KEYS

FAKE = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))


def run(seed=0, dataset="robot_arm:50", **changes):
    return Run("smoke", dataset, "exact", seed, **changes)


def lines(folder):
    return [json.loads(line) for line in (folder / "smoke.jsonl").read_text().splitlines()]


def test_every_record_has_every_key_and_plain_numbers():
    found = run(settings={"ard": True}).record("done", rmse=0.25, nll=float("nan"))
    assert tuple(found) == KEYS
    assert (found["rmse"], found["nll"], found["warnings"]) == (0.25, None, [])
    assert found["settings"] == {"ard": True}
    json.dumps(found, allow_nan=False)


def test_a_record_refuses_other_keys():
    with pytest.raises(ValueError, match="expected keys among"):
        run().record("done", speed=3.0)


def test_what_is_done_is_not_made_again(tmp_path):
    made = []
    plan = [run(), run(subset=20), run(settings={"ard": False})]
    for _ in range(2):
        make(plan, tmp_path, command=FAKE, listen=lambda n, r, found: made.append(found))
    assert len(lines(tmp_path)) == 3
    assert len([found for found in made if found is not None]) == 3
    assert pending([*plan, run(seed=9)], tmp_path) == [run(seed=9)]


def test_failures_are_noted_and_the_rest_goes_on(tmp_path):
    plan = [run(seed) for seed in (1, 3, 0)]
    make(plan, tmp_path, command=FAKE)
    error, crash, done = lines(tmp_path)
    assert error["status"] == crash["status"] == "failed"
    assert error["reason"] == "ValueError: seed 1 does not work"
    assert "SIGSEGV" in crash["reason"]
    assert error["machine"]["cores"] >= 1
    assert done["status"] == "done"
    assert pending(plan, tmp_path) == []
    assert pending(plan, tmp_path, retry=True) == plan[:2]
    make(plan, tmp_path, command=FAKE, retry=True)
    assert len(lines(tmp_path)) == 5


def test_a_run_over_its_budget_is_ended(tmp_path):
    begin = time.perf_counter()
    make([run(2)], tmp_path, budget=1.0, command=FAKE)
    assert time.perf_counter() - begin < 30
    (line,) = lines(tmp_path)
    assert line["status"] == "failed"
    assert line["reason"] == "the time budget of 1 s was used up"


def test_a_set_that_is_not_there_is_skipped_once_and_asked_for_again(tmp_path):
    absent = run(dataset=str(tmp_path / "houses.csv"))
    for _ in range(2):
        make([absent, run()], tmp_path, command=FAKE)
    skipped, done = lines(tmp_path)
    assert skipped["status"] == "skipped"
    assert "expected one of pol" in skipped["reason"]
    assert done["status"] == "done"
    (tmp_path / "houses.csv").write_text("a,y\n" + "1,2\n" * 20)
    make([absent], tmp_path, command=FAKE)
    assert [line["status"] for line in lines(tmp_path)] == ["skipped", "done", "done"]


def test_a_torn_line_is_left_out_and_its_run_made_again(tmp_path):
    make([run(), run(5)], tmp_path, command=FAKE)
    path = tmp_path / "smoke.jsonl"
    path.write_text(path.read_text()[:-100])
    with pytest.warns(UserWarning, match="line 2: expected the JSON of a run"):
        assert pending([run(), run(5)], tmp_path) == [run(5)]
    with pytest.warns(UserWarning, match="line 2"):
        make([run(), run(5)], tmp_path, command=FAKE)
    with pytest.warns(UserWarning, match="line 2"):
        assert len(Results(tmp_path, "smoke").read()) == 2


PROGRAM = """
import sys
from pathlib import Path
from megagp.experiments import Run
from megagp.experiments.bench import make
plan = [Run("smoke", "robot_arm:50", "exact", seed) for seed in (0, 2)]
make(plan, Path(sys.argv[1]), command=sys.argv[2:])
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_suite_goes_on_where_it_stopped(tmp_path, end):
    """Killed in its second run; the worker, which has a session of its own, is gone as well."""
    note = tmp_path / "pid"
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), *FAKE, str(note)]
    # Where the tests run in the background, SIGINT may be ignored, and so by what they start.
    heed = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=heed) as process:
        until(lambda: note.is_file() and note.read_text().startswith("2 "))
        process.send_signal(end)
    until(lambda: not alive(int(note.read_text().split()[1])))
    assert [line["seed"] for line in lines(tmp_path)] == [0]
    assert pending([run(0), run(2)], tmp_path) == [run(2)]


def until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_the_real_worker_ends_with_its_stdin(tmp_path):
    order = {"run": asdict(run(dataset="robot_arm:200000")), "output": str(tmp_path / "record")}
    with subprocess.Popen(WORKER, stdin=subprocess.PIPE, text=True) as process:
        process.communicate(json.dumps(order) + "\n", timeout=120)
    assert process.returncode == 1
    assert not (tmp_path / "record").exists()


@pytest.fixture
def table(tmp_path):
    """A data set of 60 rows in a file."""
    rows = [(i % 7, (i * 5) % 11, (i % 7) * 0.5 + ((i * 5) % 11) * 0.1) for i in range(60)]
    path = tmp_path / "houses.csv"
    path.write_text("a,b,price\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows))
    return f"{path}:price"


def test_the_real_worker_in_its_process(table):
    """Ten of the training points; the record of an exact GP has everything but a trace."""
    found = execute(Run("table1", table, "exact", 0, 20, {"ard": False}), command=WORKER)
    assert found["status"] == "done", found["reason"]
    absent = {key for key in KEYS if found[key] is None}
    assert absent <= {"reason", "trace", "x", "git", "memory_bytes"}
    assert (found["n_train"], found["n_test"], found["d"], found["subset"]) == (20, 12, 2, 20)
    assert len(found["hyperparameters"]["lengthscale"]) == 1
    assert set(found["seconds"]) == {"train", "precompute", "predict"}


def test_two_ranks_make_one_record(table):
    found = execute(Run("fig2", table, "exact", 0, None, {"ard": False, "workers": 2}, 2))
    assert found["status"] == "done", found["reason"]
    assert (found["x"], found["machine"]["threads"]) == (2, 1)
