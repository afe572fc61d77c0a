"""A rank that dies or falls silent, and jobs that come back."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import megagp
import ranks
from distributed import programs


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_that_dies_is_an_error_on_the_others(size):
    results = ranks.run(size, programs.interrupted, "dies", 60.0)
    assert isinstance(results[1], SystemExit)
    for message, _ in results[:1] + results[2:]:
        assert "another rank stopped or can't be reached" in message
        assert "start the same command again" in message


def test_a_rank_that_falls_silent_is_an_error_when_the_time_is_over():
    message, waited = ranks.run(2, programs.interrupted, "silent", 2.0)[0]
    assert "another rank stopped or can't be reached" in message
    assert waited >= 1.0  # not before; that it came at all is the bound


def test_each_rank_gets_its_part_of_the_cores_and_of_the_work():
    found = ranks.run(2, programs.threads_and_speeds)
    for result in found:
        assert result["threads"] == max(1, len(os.sched_getaffinity(0)) // 2)
        assert result["weights"] == (1.0, 0.5)


PATIENCE = 800  # seconds: each attempt imports torch on every rank


def torchrun(*arguments, **environment):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, **environment},
    )


def table(path, n=1600):
    X, y = programs.data(n)
    np.savez(path, X=X, y=y)
    return X


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE)
def test_the_command_line_under_torchrun(tmp_path):
    X = table(tmp_path / "table.npz", 400)
    arguments = [str(tmp_path / "table.npz"), "--test-fraction", "0.1"]
    done = torchrun("-m", "megagp", "fit", *arguments, "-o", str(tmp_path / "two.mgp"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rows held out") == 1
    assert done.stderr.count("megagp: fitted") == 1
    one = [sys.executable, "-m", "megagp", "fit", *arguments, "-o", str(tmp_path / "one.mgp")]
    subprocess.run(one, check=True, capture_output=True, timeout=PATIENCE)
    expected, found = (megagp.load(tmp_path / f"{name}.mgp") for name in ("one", "two"))
    np.testing.assert_allclose(found.predict(X[:20]), expected.predict(X[:20]), atol=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE)
def test_torchrun_says_once_what_is_wrong(tmp_path):
    done = torchrun("-m", "megagp", "fit", str(tmp_path / "no.csv"), "-o", str(tmp_path / "m"))
    assert done.returncode != 0
    assert done.stderr.count("megagp: error:") == 1


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE)
def test_a_job_comes_back_from_its_checkpoint_when_a_rank_has_died(tmp_path):
    script = Path(__file__).with_name("dying_fit.py")
    done = torchrun("--max-restarts=1", str(script), str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "another rank stopped or can't be reached" in done.stderr
    attempts = sorted(path.name for path in tmp_path.glob("attempt*"))
    assert attempts == ["attempt0.rank0", "attempt0.rank1", "attempt1.rank0", "attempt1.rank1"]
    made = int((tmp_path / "evaluations").read_text())
    X, y = programs.data(1600)
    expected = programs.small_regressor(None).fit(X, y)
    assert 0 < made < expected.n_iter_  # the rest came from the checkpoint
    found = megagp.load(tmp_path / "model.mgp")
    np.testing.assert_allclose(found.predict(X[:20]), expected.predict(X[:20]), rtol=1e-5)


def test_another_number_of_ranks_goes_on(tmp_path):
    begun = ranks.run(2, programs.fit_until, str(tmp_path), 2)
    assert [found["made"] for found in begun] == [2, 2]
    assert "mean" not in begun[0]
    resumed = ranks.run(3, programs.fit_until, str(tmp_path), None)
    X, y = programs.data(1600)
    expected = programs.small_regressor(None).fit(X, y)
    for found in resumed:
        assert found["size"] == 3
        assert found["made"] == expected.n_iter_ - 2  # the rest came from the checkpoint
        np.testing.assert_allclose(found["mean"], expected.predict(X[:20]), rtol=1e-5)
