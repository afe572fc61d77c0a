"""The loss: minus the log likelihood per observation, and its gradient by θ."""

import weakref

import numpy as np
import pytest
import torch

import reference
from megagp.kernels import RBF, Hyperparameter, Matern32
from megagp.mean import basis
from megagp.training import Objective, Solving
from megagp.training import objective as objective_module
from megagp.training.objective import SUSPECT_ROUNDING
from megagp.training.parameters import Parameters

TIGHT = {"rtol": 1e-4, "probe_rtol": 1e-4}


def objective(n=150, p=1, kernel=None, dense_below=0, noise=0.05, seed=0, scale=None, **solving):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    Y = np.sin(X[:, :1] + np.arange(p)) + 0.2 * rng.normal(size=(n, p))
    X, Y = torch.from_numpy(X), torch.from_numpy(Y)
    kernel = Matern32([1.0, 1.0]) if kernel is None else kernel
    noise = Hyperparameter("noise_variance", noise)
    return Objective(
        X,
        Y,
        basis(X, "constant"),
        kernel,
        noise,
        torch.ones(n, dtype=torch.float64) if scale is None else torch.from_numpy(scale),
        Parameters(kernel, noise, 1e-8),
        Solving(dense_below=dense_below, **solving),
        seed,
    )


def reference_loss(f, theta):
    f.parameters.set(theta)
    noise = float(f.noise.value) * f.noise_scale.numpy()
    arrays = [A.numpy() for A in (f.operator.X, f.Y, f.H)]
    return -reference.log_likelihood(f.operator.kernel, noise, *arrays) / f.Y.numel()


@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize("scale", [None, np.linspace(0.5, 4, 60)], ids=["one", "vector"])
def test_dense_against_differences(p, scale):
    f = objective(60, p, dense_below=100, scale=scale)
    theta = f.parameters.get() + 0.2
    loss, gradient = f(theta)
    assert loss == pytest.approx(reference_loss(f, theta), rel=1e-9)
    for i in range(len(theta)):
        step = 1e-5 * np.eye(len(theta))[i]
        slope = (reference_loss(f, theta + step) - reference_loss(f, theta - step)) / 2e-5
        assert gradient[i] == pytest.approx(slope, abs=1e-6)


def test_stochastic_is_near():
    exact, f = objective(300, dense_below=300), objective(300, probes=200, rank=100, **TIGHT)
    theta = f.parameters.get()
    (loss, gradient), (true, slope) = f(theta), exact(theta)
    assert loss == pytest.approx(true, abs=0.02)
    np.testing.assert_allclose(gradient, slope, atol=0.03)
    assert f.tally.evaluations == 1
    assert f.tally.iterations > 0
    assert f.tally.unconverged == 0
    assert f.tally.ranks == [100]
    assert exact.tally.iterations == 0


def test_a_second_look_costs_nothing_and_probes_are_numbered():
    f = objective(rank=20)
    theta = f.parameters.get()
    first = f(theta, 1)
    again = f(theta, 1)
    assert first[0] == again[0]
    assert np.array_equal(first[1], again[1])
    assert f.tally.evaluations == 1
    other = f(theta, 2)
    assert f.tally.evaluations == 2
    assert other[0] != first[0]
    fresh = objective(rank=20)
    assert fresh(theta, 1)[0] == first[0]
    # By other pivots and other probes; greedy pivots have no seed.
    assert objective(rank=20, seed=5)(theta, 1)[0] != first[0]
    greedy = [objective(rank=20, pivoting="greedy", seed=s)(theta, 1)[0] for s in (0, 0, 5)]
    assert greedy[0] == greedy[1] != greedy[2]


def test_back_to_where_it_was():
    f = objective(rank=20)
    theta = f.parameters.get()
    first = f(theta, 1)
    kept = f.state()
    f(theta + 0.3, 2)
    assert not np.array_equal(f.parameters.get(), theta)
    f.restore(kept)
    assert np.array_equal(f.parameters.get(), theta)
    assert -f.last.value / 150 == first[0]
    # None: any probes will do, so what is known is good enough.
    assert f(theta, None)[0] == first[0]
    assert f.tally.evaluations == 2
    theta += 1.0  # the caller's array is not the objective's
    assert np.array_equal(kept.theta + 1.0, theta)


def test_no_likelihood_is_infinite_and_forgotten():
    f = objective(40, kernel=RBF(1.0), dense_below=100)
    theta = f.parameters.get()
    good = f(theta)
    bad = theta.copy()
    bad[0], bad[-1] = np.log(1e4), np.log(1e-30)  # K of rank one, and no noise
    loss, gradient = f(bad)
    assert loss == np.inf
    assert np.isnan(gradient).all()
    assert f(theta)[0] == good[0]
    assert f.last.value == -good[0] * 40


def test_unconverged_solves_are_counted():
    f = objective(rank=0, max_iter=2, rtol=1e-6)
    f(f.parameters.get())
    assert f.tally.unconverged == 1


@pytest.mark.parametrize(
    ("lengthscale", "outputscale", "precise"), [(5.0, 50.0, True), (0.2, 2.0, False)]
)
def test_float64_where_rounding_changes_the_likelihood(lengthscale, outputscale, precise):
    # In both the ratio of rounding to noise makes it suspect; only a product can tell.
    f = objective(
        600, kernel=Matern32([lengthscale] * 2, outputscale), noise=3e-4 * outputscale / 50
    )
    assert f._rounding() > SUSPECT_ROUNDING
    loss, _ = f(f.parameters.get())
    assert (f.operator.dtype == torch.float64) == precise
    assert not f.float32_failed
    assert f.last.solve.converged
    error = 4 * f.last.standard_error / len(f.Y) + f.noise_level
    assert loss == pytest.approx(reference_loss(f, f.parameters.get()), abs=error)


def test_probes_of_many_points_are_solved_more_loosely(monkeypatch):
    monkeypatch.setattr("megagp.training.objective.MANY_POINTS", 300)
    residuals = []
    for n in (299, 301):
        f = objective(n, kernel=Matern32([0.1, 0.1]), noise=1e-3, rank=1, neighbours=0)
        f(f.parameters.get())
        residuals.append(float(f.last.solve.residual[2:].square().mean().sqrt()))
    assert residuals[0] <= 0.1 < residuals[1] <= 0.2


@pytest.mark.parametrize(("many", "refused"), [(150, True), (151, False)])
def test_a_trial_of_many_points_that_float32_fails_at_is_refused(monkeypatch, many, refused):
    monkeypatch.setattr("megagp.training.objective.MANY_POINTS", many)
    f = objective(kernel=Matern32([1.0, 1.0]), noise=0.1, rank=0, neighbours=0, max_iter=60)
    theta = f.parameters.get()
    good, _ = f(theta)
    far = theta.copy()
    far[-1] = np.log(1e-9)  # so little noise that no solve with entries in float32 converges
    loss, _ = f(far, hold=True)
    assert np.isfinite(loss) != refused
    assert (f.operator.dtype == torch.float32) == refused
    if refused:
        assert "float32" in str(f.failure)
        assert f.tally.evaluations == 2
    # Not a trial: there is nothing shorter, so float64 it is.
    assert np.isfinite(f(far)[0])
    assert f.operator.dtype == torch.float64
    assert f(theta)[0] == pytest.approx(good, abs=5e-3)


def test_a_failure_holds_on_to_nothing_large(monkeypatch):
    def fail(*args, **options):
        raise ValueError("no")

    f = objective(rank=20)
    monkeypatch.setattr(objective_module, "stochastic", fail)
    assert f(f.parameters.get())[0] == np.inf
    assert str(f.failure) == "no"
    P, f._P = weakref.ref(f._P), None
    assert P() is None
