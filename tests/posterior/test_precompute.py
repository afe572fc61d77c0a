"""The last solve: how far it goes, and what that leaves of the mean."""

import warnings

import numpy as np
import pytest

from megagp import GPRegressor
from megagp.kernels import Matern32

N = 1800  # more than are solved densely


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (N, 6))
    y = np.sin(X @ [1.0, 2.0, 0.5, 1.5, 1.0, 0.5]) + 0.01 * rng.normal(size=N)
    return X, (y - y.mean()) / y.std()


def fitted(data, noise_variance, **settings):
    model = GPRegressor(
        kernel=Matern32(1.0, 1.0),
        noise_variance=noise_variance,
        training="none",
        inputs="standard",
        whiten=False,
        random_state=0,
        residual_neighbours=0,
        rank=20,
        training_rtol=0.9,
        **settings,
    )
    return model.fit(*data)


def dense_mean(data, noise_variance):
    X, y = data
    r = np.sqrt(((X[:, None] - X) ** 2).sum(-1))
    K = (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r)
    h = np.ones(N)
    inverse = np.linalg.inv(K + noise_variance * np.eye(N))
    beta = h @ inverse @ y / (h @ inverse @ h)
    return beta + K @ inverse @ (y - beta)


@pytest.mark.parametrize("noise_variance", [1e-2, 1e-3, 1e-4])
def test_means_are_off_by_less_than_a_fifth_of_the_noise(data, noise_variance):
    model = fitted(data, noise_variance, rtol=0.1)
    off = model.predict(data[0]) - dense_mean(data, noise_variance)
    wanted = max(0.2 * noise_variance**0.5, 0.01)  # rtol / 10 at least, y having variance 1
    assert np.sqrt((off**2).mean()) < 1.05 * wanted
    assert model.diagnostics_["precompute"]["residual"][0] <= wanted
    assert model.diagnostics_["precompute"]["status"] == "CONVERGED"


def test_rtol_is_what_warnings_are_about(data):
    """Not what the solve goes on to beyond it, where iterations run out on the way."""
    found = []
    for max_iter in (8, 64, 80):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = fitted(data, 1e-4, rtol=0.1, max_iter=max_iter)
        precompute = model.diagnostics_["precompute"]
        missed = precompute["residual"][0] > 0.1
        assert missed == any("behind predictions" in str(w.message) for w in caught), max_iter
        found.append((precompute["status"], missed))
    assert found == [("MAX_ITER", True), ("MAX_ITER", False), ("CONVERGED", False)]


def test_much_noise_asks_for_no_more_than_rtol(data):
    """Which stops the solve at once here."""
    few = fitted(data, 1.0, rtol=0.1).diagnostics_["precompute"]
    many = fitted(data, 1.0, rtol=0.01).diagnostics_["precompute"]
    assert few["residual"][0] > 0.01 >= many["residual"][0]
    assert few["iterations"] < many["iterations"]
