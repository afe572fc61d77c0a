"""Interrupted fits: resumed they end where they would have, and never from what is not theirs."""

import numpy as np
import pytest
import torch

from megagp import GPRegressor, KernelOperator
from megagp.checkpoint import JOURNAL, PREVIOUS, Checkpoint
from megagp.covariance import Covariance
from megagp.kernels import Matern32
from megagp.likelihood import stochastic
from megagp.preconditioners import PivotedCholesky
from megagp.solvers import pcg, solve
from megagp.training import objective as objective_module

N = 1600  # above which the likelihood is no longer dense


def data(n=N):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=n)


def regressor(folder, **changes):
    settings = {"training": "adam", "steps": 3, "rank": 60, "probes": 3, "random_state": 0}
    return GPRegressor(checkpoint=folder, **{**settings, **changes})


class Interrupted(BaseException):
    """Like Ctrl-C: nothing catches it."""


def fit_until(monkeypatch, model, evaluations):
    """Fit, but be interrupted in the evaluation after that many."""
    made = 0
    whole = objective_module.stochastic

    def counted(*args, **options):
        nonlocal made
        if made == evaluations:
            raise Interrupted
        made += 1
        return whole(*args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(objective_module, "stochastic", counted)
        model.fit(*data())
    return made


@pytest.fixture(scope="module")
def uninterrupted():
    return regressor(None).fit(*data())


@pytest.mark.parametrize(("method", "stop"), [("adam", 1), ("adam", 3), ("lbfgs", 2)])
def test_a_resumed_fit_ends_where_it_would_have(tmp_path, monkeypatch, uninterrupted, method, stop):
    expected = uninterrupted
    if method != "adam":
        expected = regressor(None, training=method).fit(*data())
    with pytest.raises(Interrupted):
        fit_until(monkeypatch, regressor(tmp_path, training=method), stop)
    model = regressor(tmp_path, training=method)
    total = fit_until(monkeypatch, model, 100)
    assert total == expected.n_iter_ - stop  # nothing is evaluated twice
    X, _ = data()
    np.testing.assert_allclose(model.predict(X[:9]), expected.predict(X[:9]), rtol=1e-6)
    assert model.noise_variance_ == pytest.approx(expected.noise_variance_, rel=1e-6)
    assert model.n_iter_ == expected.n_iter_


@pytest.mark.parametrize("stop", [2, 3])
def test_a_step_that_failed_fails_again_without_its_solve(tmp_path, monkeypatch, stop):
    whole, places = objective_module.stochastic, []

    def stochastic(covariance, *args, **options):
        places.append(float(covariance.noise[0]))
        if places.index(places[-1]) == 1:
            raise ValueError("no likelihood here")
        return whole(covariance, *args, **options)

    monkeypatch.setattr(objective_module, "stochastic", stochastic)
    expected = regressor(None, training="lbfgs").fit(*data())
    made = len(places)
    assert made == expected.n_iter_
    with pytest.raises(Interrupted):
        fit_until(monkeypatch, regressor(tmp_path, training="lbfgs"), stop)
    model = regressor(tmp_path, training="lbfgs")
    assert fit_until(monkeypatch, model, 100) == made - stop
    X, _ = data()
    np.testing.assert_allclose(model.predict(X[:9]), expected.predict(X[:9]), rtol=1e-6)
    assert model.n_iter_ == expected.n_iter_


def test_a_fit_whose_noise_varies_is_resumed_in_its_second_part(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    X, _ = data()
    y = np.sin(2 * X[:, 0]) + np.where(X[:, 0] > 0, 0.5, 0.05) * rng.normal(size=N)
    settings = {"training": "pretrain", "noise_model": "varying", "calibration": "local"}
    expected = regressor(None, **settings).fit(X, y)
    monkeypatch.setitem(globals(), "data", lambda: (X, y))
    first, last = (p["evaluations"] for p in expected.diagnostics_["phases"] if p["points"] == N)
    with pytest.raises(Interrupted):
        fit_until(monkeypatch, regressor(tmp_path, **settings), first + 1)
    model = regressor(tmp_path, **settings)
    assert fit_until(monkeypatch, model, 100) == last - 1
    found, wanted = (m.predict(X[:9], return_std=True) for m in (model, expected))
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


def test_a_fit_with_effects_of_places_is_resumed(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    X, y = (np.concatenate([A, A[:400], A[:400]]) for A in data())
    y[-400:] += np.where(np.arange(400) % 4 == 0, 0.5, 0.0) * rng.normal(size=400)
    monkeypatch.setitem(globals(), "data", lambda: (X, y))
    expected = regressor(None, noise_model="varying").fit(X, y)
    assert expected.place_variance_ > 0
    with pytest.raises(Interrupted):
        fit_until(monkeypatch, regressor(tmp_path, noise_model="varying"), 2)
    model = regressor(tmp_path, noise_model="varying")
    assert fit_until(monkeypatch, model, 100) == expected.n_iter_ - 2
    found, wanted = (m.predict(X[:9], return_std=True) for m in (model, expected))
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


def test_a_finished_fit_is_not_made_again(tmp_path, monkeypatch, uninterrupted):
    regressor(tmp_path).fit(*data())
    again = regressor(tmp_path)
    assert fit_until(monkeypatch, again, 100) == 0
    assert again.diagnostics_["precompute"]["iterations"] == 0
    X, _ = data()
    np.testing.assert_allclose(again.predict(X[:9]), uninterrupted.predict(X[:9]), rtol=1e-6)


def test_other_data_and_settings_are_refused_by_name(tmp_path):
    X, y = data()
    regressor(tmp_path, training="none").fit(X, y)
    for other, name in [
        (lambda: regressor(tmp_path, training="none").fit(X, y + 1e-3 * X[:, 0]), "other y;"),
        (lambda: regressor(tmp_path, training="none", rank=50).fit(X, y), "other rank;"),
        (lambda: regressor(tmp_path, training="none", random_state=1).fit(X, y), "other seed;"),
        (
            lambda: regressor(tmp_path, training="none", kernel=Matern32([1.0, 2.0])).fit(X, y),
            "other kernel;",
        ),
    ]:
        with pytest.raises(ValueError, match="expected a checkpoint of this fit") as caught:
            other()
        assert name in str(caught.value)


def test_without_a_seed_a_resumed_fit_keeps_the_first(tmp_path):
    X, y = data()
    fits = [regressor(tmp_path, training="none", random_state=None).fit(X, y) for _ in range(2)]
    assert fits[0].log_marginal_likelihood_ == fits[1].log_marginal_likelihood_


def journal(folder):
    return Checkpoint(folder, {"n": 3}, 0)


def record(checkpoint, value):
    entry = {"theta": [value], "loss": value, "n": 3}
    checkpoint.record(entry, {"x": torch.full((2,), value)})


def test_a_damaged_newest_file_falls_back_to_the_one_before(tmp_path):
    first = journal(tmp_path)
    record(first, 1.0)
    record(first, 2.0)
    newest = tmp_path / JOURNAL
    newest.write_bytes(newest.read_bytes()[:-3])
    with pytest.warns(UserWarning, match="going on from the one before"):
        assert journal(tmp_path).steps == 1
    (tmp_path / PREVIOUS).unlink()
    with pytest.raises(ValueError, match="to start again"):
        journal(tmp_path)


def test_the_journal_keeps_tensors_of_the_last_and_the_best(tmp_path):
    first = journal(tmp_path)
    for value in (3.0, 1.0, 2.0, 5.0):
        record(first, value)
    again = journal(tmp_path)
    kept = [again.recall(np.array([value]))[1] for value in (3.0, 1.0, 2.0, 5.0)]
    assert [list(state) for state in kept] == [[], ["x"], [], ["x"]]
    assert float(kept[1]["x"][0]) == 1.0
    assert again.recall(np.array([7.0])) is None


def test_failures_are_kept_in_their_places(tmp_path):
    """Before an evaluation, several at one θ, and after the last, where a leg may end."""

    def at(value):
        return np.array([value])

    first = journal(tmp_path)
    record(first, 1.0)
    for value in (2.0, 2.0, 3.0):
        first.fail({"theta": [value], "says": str(value)})
    record(first, 4.0)
    first.fail({"theta": [5.0], "says": "5.0"})
    again = journal(tmp_path)
    assert again.failed(at(1.0)) is None
    assert again.recall(at(1.0)) is not None
    assert [again.failed(at(value))["says"] for value in (2.0, 2.0)] == ["2.0", "2.0"]
    assert again.failed(at(2.0)) is None  # it was asked for no third time
    assert again.failed(at(3.0))["says"] == "3.0"
    assert again.recall(at(4.0)) is not None
    assert again.failed(at(6.0)) is None
    assert again.failed(at(5.0))["says"] == "5.0"
    record(again, 6.0)
    assert journal(tmp_path).steps == 3


def test_a_failure_elsewhere_leaves_the_journal(tmp_path):
    first = journal(tmp_path)
    first.fail({"theta": [2.0], "says": ""})
    first.fail({"theta": [3.0], "says": ""})
    record(first, 4.0)
    again = journal(tmp_path)
    assert again.failed(np.array([2.0])) is not None
    again.fail({"theta": [3.5], "says": ""})
    last = journal(tmp_path)
    assert last.steps == 0
    assert [last.failed(np.array([t])) is not None for t in (2.0, 3.0, 3.5)] == [True, False, True]


def test_a_journal_that_took_another_way_is_left_there(tmp_path):
    first = journal(tmp_path)
    for value in (3.0, 1.0):
        record(first, value)
    again = journal(tmp_path)
    assert again.recall(np.array([3.0])) is not None
    assert again.recall(np.array([1.5])) is None
    record(again, 1.5)
    assert journal(tmp_path).steps == 2


# ---- inside a solve --------------------------------------------------------------------------


class Limited:
    """A product that is interrupted after so many calls."""

    def __init__(self, covariance, calls):
        self.covariance, self.left = covariance, calls

    def matmul(self, V):
        if self.left == 0:
            raise Interrupted
        self.left -= 1
        return self.covariance.matmul(V)


def system():
    X, y = data(300)
    noise = torch.full((300,), 0.01, dtype=torch.float64)
    covariance = Covariance(KernelOperator(X, Matern32(), dtype="float64"), noise)
    return covariance, torch.from_numpy(np.stack([y, np.cos(y), np.zeros(300)], axis=1))


def in_progress(folder):
    return Checkpoint(folder, {}, 0, every=0.0).solving("test", np.zeros(1))


@pytest.mark.parametrize("way", [{}, {"verify": False, "smooth": True}])
def test_pcg_goes_on_from_the_iteration_that_was_kept(tmp_path, way):
    covariance, B = system()
    expected = pcg(covariance.matmul, B, rtol=1e-8, **way)
    with pytest.raises(Interrupted):
        pcg(Limited(covariance, 60).matmul, B, rtol=1e-8, saver=in_progress(tmp_path), **way)
    rest = Limited(covariance, 10_000)
    found = pcg(rest.matmul, B, rtol=1e-8, saver=in_progress(tmp_path), **way)
    np.testing.assert_array_equal(found.x, expected.x)
    np.testing.assert_array_equal(found.coefficients.alpha, expected.coefficients.alpha)
    assert found.status == expected.status
    assert found.iterations.tolist() == expected.iterations.tolist()
    assert 10_000 - rest.left < int(expected.iterations.max()) - 50


def test_a_refined_solve_starts_from_what_was_kept(tmp_path, monkeypatch):
    covariance, B = system()
    first = solve(covariance, B, rtol=1e-9, saver=in_progress(tmp_path))
    again = solve(covariance, B, rtol=1e-9, saver=in_progress(tmp_path))
    assert again.iterations.tolist() == first.iterations.tolist()  # of both, and none were made
    assert again.products == B.shape[1]
    expected = torch.linalg.solve(covariance.operator.block() + torch.diag(covariance.noise), B)
    np.testing.assert_allclose(again.x, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("cut", ["probes", "targets"])
def test_an_evaluation_cut_within_its_solves_goes_on(tmp_path, cut):
    covariance, B = system()
    covariance = Covariance(KernelOperator(covariance.operator.X, Matern32()), covariance.noise)
    P = PivotedCholesky(covariance, torch.arange(0, 300, 10))
    shown = []

    def evaluate(matrix, folder, callback=None):
        checkpoint = Checkpoint(folder, {}, 0, every=0.0)
        return stochastic(
            matrix,
            B[:, :1],
            torch.ones(300, 1, dtype=torch.float64),
            P,
            torch.Generator().manual_seed(0),
            probes=4,
            rtol=1e-7,
            probe_rtol=1e-3,
            precise=covariance.precise(),
            refine=True,
            callback=callback,
            saver=checkpoint.solving("probes", np.zeros(1)),
            precise_saver=checkpoint.solving("targets", np.zeros(1)),
        )

    whole = evaluate(covariance, tmp_path / "whole", lambda i, _: shown.append(i))
    assert whole.solve.converged
    probing = int(whole.solve.iterations[2:].max())
    rounds = shown.count(1)
    assert rounds > 2  # the probes, and y refined more than once
    after = probing // 2 if cut == "probes" else probing + 3

    def interrupt(i, residual):
        nonlocal after
        after -= 1
        if after < 0:
            raise Interrupted

    with pytest.raises(Interrupted):
        evaluate(covariance, tmp_path / "cut", interrupt)
    again = []
    found = evaluate(covariance, tmp_path / "cut", lambda i, _: again.append(i))
    assert len(again) < len(shown)
    assert again.count(1) == rounds - 1  # neither the probes nor y are begun again
    assert found.value == pytest.approx(whole.value, rel=1e-9)
    assert found.solve.iterations[2:].tolist() == whole.solve.iterations[2:].tolist()
    np.testing.assert_allclose(found.weights, whole.weights, rtol=1e-4, atol=1e-5)


def test_the_state_of_another_solve_is_not_used(tmp_path):
    covariance, B = system()
    pcg(covariance.matmul, B, max_iter=5, saver=in_progress(tmp_path))
    assert in_progress(tmp_path).load() is not None
    other = Checkpoint(tmp_path, {}, 0).solving("another", np.zeros(1))
    assert other.load() is None
    assert Checkpoint(tmp_path, {}, 1).solving("test", np.zeros(1)).load() is None


def test_a_damaged_solve_starts_again(tmp_path):
    (tmp_path / "solve.test.mgp").write_bytes(b"nothing")
    with pytest.warns(UserWarning, match="the solve starts again"):
        assert in_progress(tmp_path).load() is None


def test_copies_are_made_when_it_is_time(tmp_path):
    now = [0.0]
    checkpoint = Checkpoint(tmp_path, {}, 0, every=60.0, clock=lambda: now[0])
    saver = checkpoint.solving("test", np.zeros(1))
    taken = []
    for now[0] in (10.0, 59.0, 61.0, 100.0, 122.0):
        saver.offer(lambda: taken.append(now[0]) or {"x": torch.zeros(1)})
    assert taken == [61.0, 122.0]
