"""Whitening against scikit-learn's, and on columns without spread."""

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from megagp.whitening import Whitening


@pytest.mark.parametrize("n", [2, 3, 500])
@pytest.mark.parametrize(
    ("centre", "scale"), [(0.0, 1e-9), (1.0, 1e-6), (0.0, 1.0), (-1e6, 1.0), (-1e6, 1e9)]
)
def test_like_scikit_learn(n, scale, centre):
    X = centre + scale * np.random.default_rng(0).normal(size=(n, 3))
    found = Whitening.of(torch.from_numpy(X)).apply(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(found, StandardScaler().fit_transform(X), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.std(axis=0), 1, rtol=1e-6)
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, -7.3, 1e-30, 1e30, 1 / 3])
@pytest.mark.parametrize("n", [1, 7, 1000])
def test_constant_columns_become_exactly_zero(value, n):
    X = torch.full((n, 2), value, dtype=torch.float64)
    X[:, 1] = torch.arange(n, dtype=torch.float64)
    whitening = Whitening.of(X)
    assert not whitening.apply(X)[:, 0].any()
    assert float(whitening.scale[0]) == 1
    # A new value there is a change in the units of the column, not of its rounding errors.
    moved = X.clone()
    moved[:, 0] += max(1.0, abs(value))
    np.testing.assert_allclose(whitening.apply(moved)[:, 0], max(1.0, abs(value)), rtol=1e-9)


def test_there_and_back():
    X = torch.from_numpy(5 + 3 * np.random.default_rng(0).normal(size=(50, 4)))
    X[:, 2] = 0.1
    whitening = Whitening.of(X)
    torch.testing.assert_close(whitening.undo(whitening.apply(X)), X, rtol=1e-13, atol=1e-13)


def test_identity():
    X = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 2)))
    whitening = Whitening.of(X, identity=True)
    assert torch.equal(whitening.apply(X), X)
    assert torch.equal(whitening.undo(X), X)
