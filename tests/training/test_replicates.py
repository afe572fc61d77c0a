"""Rows with the same inputs, merged, against the dense reference on all rows."""

import numpy as np
import pytest
import torch

import reference
from megagp import GPRegressor, equal_rows, load
from megagp.kernels import Hyperparameter, Matern32
from megagp.mean import basis
from megagp.training import Objective, PlaceEffects, Solving, places
from megagp.training.parameters import Parameters


def repeated(n=40, N=100, p=2, d=2, seed=0):
    """N rows at n places, in no order, with noise scales of their own."""
    rng = np.random.default_rng(seed)
    where = rng.permutation(np.r_[np.arange(n), rng.integers(0, n // 3, N - n)])
    X = rng.normal(size=(n, d))[where]
    Y = np.sin(X[:, :1] + np.arange(p)) + 0.3 * rng.normal(size=(N, p))
    return X, Y, rng.uniform(0.5, 2.0, N)


def merged(X, Y, scale):
    return places(*(torch.from_numpy(A) for A in (X, Y, scale)))


def test_places_are_the_distinct_rows_in_their_order():
    X, Y, scale = repeated()
    at = merged(X, Y, scale)
    first = at.first.numpy()
    np.testing.assert_array_equal(X[first[at.place]], X)
    assert len(first) == len(np.unique(X, axis=0)) == 40
    assert (np.diff(first) > 0).all()
    for g in range(40):
        rows = (X[first[g]] == X).all(1)
        mean = np.average(Y[rows], axis=0, weights=1 / scale[rows])
        np.testing.assert_allclose(at.Y[g], mean, rtol=1e-12)
        assert float(at.noise_scale[g]) == pytest.approx(1 / (1 / scale[rows]).sum())


def test_distinct_rows_stay_as_they_are():
    X, Y, scale = repeated(50, 50)
    at = merged(X, Y, scale)
    assert at.replicates is None
    np.testing.assert_array_equal(at.first, np.arange(50))
    np.testing.assert_array_equal(at.Y, Y)
    np.testing.assert_array_equal(at.noise_scale, scale)


def test_both_zeros_are_one_place_and_neighbours_are_two():
    X = np.array([[0.0, 1.0], [-0.0, 1.0], [0.0, np.nextafter(1.0, 2.0)], [1.0, 0.0]])
    at = merged(X, np.ones((4, 1)), np.ones(4))
    assert at.place.tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("d", [1, 2, 7])
def test_different_rows_with_one_key_are_told_apart(monkeypatch, d):
    X, Y, scale = repeated(d=d)
    right = merged(X, Y, scale)
    monkeypatch.setattr(equal_rows, "_odd_numbers", lambda count: np.zeros(count, dtype=np.uint64))
    for found, wanted in zip(merged(X, Y, scale)[:4], right[:4], strict=True):
        assert torch.equal(found, wanted)


def test_equal_observations_leave_no_squares():
    X = np.repeat(np.arange(3.0)[:, None], 5, axis=0)
    at = merged(X, 0.1 + X, np.ones(15))
    assert at.replicates.squares.tolist() == [0.0, 0.0, 0.0]
    assert at.Y.tolist() == [[0.1], [1.1], [2.1]]


def objective(X, Y, scale, dense_below=1000, factor=None, place_variance=None, **solving):
    at = merged(X, Y, scale)
    again, noise_scale = at.replicates, at.noise_scale
    if factor is not None:
        again, noise_scale = again.scaled(factor), noise_scale * factor
    X = torch.from_numpy(X)[at.first]
    kernel, noise = Matern32([0.8, 1.3], 1.2), Hyperparameter("noise_variance", 0.07)
    effects = None
    if place_variance is not None:
        place = Hyperparameter("place_variance", place_variance)
        effects = PlaceEffects(place, torch.linspace(0.5, 2.0, len(X), dtype=torch.float64))
    return Objective(
        X,
        at.Y,
        basis(X, "constant"),
        kernel,
        noise,
        noise_scale,
        Parameters(kernel, noise, 1e-8, effects and effects.variance),
        Solving(dense_below=dense_below, **solving),
        seed=0,
        replicates=again,
        effects=effects,
    )


def reference_loss(f, theta, X, Y, scale):
    f.parameters.set(theta)
    noise = float(f.noise.value) * scale
    if f.effects is not None:  # a kernel that is τ² s for equal rows
        at = merged(X, Y, scale).place
        noise = np.diag(noise) + f.effects.variances()[at].numpy() * (X[:, None] == X).all(2)
    kernel, H = f.operator.kernel, np.ones((len(X), 1))
    return -reference.log_likelihood(kernel, noise, X, Y, H) / Y.size


@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize("varies", [False, True], ids=["one factor", "a factor for each place"])
@pytest.mark.parametrize("place_variance", [None, 0.04], ids=["", "effects of places"])
def test_the_likelihood_is_that_of_all_rows(p, varies, place_variance):
    X, Y, scale = repeated(p=p)
    factor = torch.linspace(0.3, 3.0, 40, dtype=torch.float64) if varies else None
    f = objective(X, Y, scale, factor=factor, place_variance=place_variance)
    rows = scale if factor is None else scale * factor[merged(X, Y, scale).place].numpy()
    theta = f.parameters.get() + 0.2
    loss, gradient = f(theta)
    assert f.size == Y.size
    assert loss == pytest.approx(reference_loss(f, theta, X, Y, rows), rel=1e-9)
    for i in range(len(theta)):
        step = 1e-5 * np.eye(len(theta))[i]
        up, down = (reference_loss(f, theta + s, X, Y, rows) for s in (step, -step))
        assert gradient[i] == pytest.approx((up - down) / 2e-5, abs=1e-6)


@pytest.mark.parametrize("place_variance", [None, 0.04], ids=["", "effects of places"])
def test_the_likelihood_by_solves_is_near(place_variance):
    X, Y, scale = repeated(300, 900)
    exact = objective(X, Y, scale, place_variance=place_variance)
    loose = {"dense_below": 0, "probes": 200, "rank": 100, "rtol": 1e-4, "probe_rtol": 1e-4}
    f = objective(X, Y, scale, place_variance=place_variance, **loose)
    (loss, gradient), (true, slope) = f(f.parameters.get()), exact(exact.parameters.get())
    assert loss == pytest.approx(true, abs=3 * f.last.standard_error / f.size + 1e-3)
    np.testing.assert_allclose(gradient, slope, atol=0.03)


@pytest.mark.parametrize("n", [40, 1501], ids=["dense", "by solves"])
def test_a_fit_on_repeated_rows_is_one_on_all_of_them(n, tmp_path):
    X, Y, scale = repeated(n, n + 60)
    kernel = Matern32([0.8, 1.3], 1.2)
    settings = {"training": "none", "noise_variance": 0.07, "whiten": False, "rtol": 1e-6}
    model = GPRegressor(kernel, random_state=0, **settings).fit(X, Y, noise_scale=scale)
    assert len(model.posterior_.X) == n
    assert model.n_samples_ == n + 60
    new = repeated(30, 30, seed=1)[0]
    K = reference.matrix(kernel, X, X) + np.diag(0.07 * scale)
    k, H = reference.matrix(kernel, new, X), np.ones((n + 60, 1))
    beta = reference.trend(kernel, 0.07 * scale, X, Y, H)
    mean = beta + k @ np.linalg.solve(K, Y - H @ beta)
    np.testing.assert_allclose(model.predict(new), mean, atol=1e-5)
    exact = reference.matrix(kernel, new, new) - k @ np.linalg.solve(K, k.T)
    u = 1 - k @ np.linalg.solve(K, H)
    exact = exact + u @ u.T / (H.T @ np.linalg.solve(K, H))
    std = model.predict(new, return_std=True, latent=True, variance="exact")[1]
    np.testing.assert_allclose(std[:, 0], np.sqrt(exact.diagonal()), rtol=0.02)
    model.save(tmp_path / "model.mgp")
    np.testing.assert_array_equal(load(tmp_path / "model.mgp").predict(new), model.predict(new))
    if n == 40:
        truth = reference.log_likelihood(kernel, 0.07 * scale, X, Y, H)
        assert model.log_marginal_likelihood_ == pytest.approx(truth, rel=1e-9)
