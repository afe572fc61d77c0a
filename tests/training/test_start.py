"""Lengthscales to start from."""

import numpy as np
import pytest
import torch

from megagp import GPRegressor
from megagp.training import start_lengthscale
from megagp.training.start import FAR


def nearest(X):
    D = np.sqrt(((X[:, None] - X) ** 2).sum(2))
    return np.median((D + np.diag(np.full(len(X), np.inf))).min(1))


@pytest.mark.parametrize("d", [1, 5, 60])
def test_one_unless_neighbours_are_far(d):
    X = np.random.default_rng(0).normal(size=(301, d))
    apart = nearest(X)
    assert (apart > FAR) == (d == 60)
    expected = apart if d == 60 else 1.0
    assert start_lengthscale(torch.from_numpy(X)) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("n", [0, 1])
def test_nothing_to_tell_from(n):
    assert start_lengthscale(torch.zeros(n, 3, dtype=torch.float64)) == 1.0


def test_many_inputs_are_learned_from():
    # At lengthscales of 1 in 80 dimensions all points are strangers, and y would be noise.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 80))
    y = X[:, 0] + 0.5 * X[:, 1] + 0.05 * rng.normal(size=400)
    model = GPRegressor(random_state=0).fit(X[:300], y[:300])
    assert np.sqrt(np.mean((model.predict(X[300:]) - y[300:]) ** 2)) < 0.3 * y.std()
