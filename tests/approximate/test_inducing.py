"""Where inducing points start."""

import numpy as np
import pytest
import torch

from megagp.approximate.factor import factorise
from megagp.approximate.inducing import INDUCING, choose_inducing
from megagp.kernels import RBF, Matern32


def points(n=200, d=2):
    return torch.from_numpy(np.random.default_rng(0).standard_normal((n, d)))


@pytest.mark.parametrize("method", INDUCING)
def test_as_many_distinct_points_as_asked_for_the_same_for_a_seed(method):
    X = points()
    Z = choose_inducing(X, Matern32(), 20, method, seed=1)
    assert Z.shape == (20, 2)
    assert len(np.unique(Z, axis=0)) == 20
    assert torch.equal(Z, choose_inducing(X, Matern32(), 20, method, seed=1))
    assert not torch.equal(Z, choose_inducing(X, Matern32(), 20, method, seed=2))


@pytest.mark.parametrize("method", INDUCING)
def test_no_more_than_there_are_distinct_rows(method):
    X = points(5).repeat(4, 1)
    Z = choose_inducing(X, Matern32(), 50, method, seed=0)
    np.testing.assert_array_equal(Z, np.unique(X, axis=0))


@pytest.mark.parametrize("method", ["pivots", "random"])
def test_rows_of_the_data(method):
    X = points()
    rows = {tuple(x) for x in X.tolist()}
    assert all(tuple(z) in rows for z in choose_inducing(X, RBF(), 10, method, 0).tolist())


def test_pivots_and_clusters_cover_more_than_a_random_choice():
    """The trace that is left, Σ k(x, x) - tr Q, of clustered data with a few points apart."""
    rng = np.random.default_rng(0)
    X = torch.from_numpy(
        np.concatenate([0.05 * rng.standard_normal((900, 2)), rng.uniform(-5, 5, (60, 2))])
    )
    kernel = RBF(0.7)

    def left(method):
        Z = choose_inducing(X, kernel, 40, method, 0)
        A = factorise(kernel.evaluate(Z, Z), 1e-8).solve(kernel.evaluate(Z, X))
        return len(X) - float(A.square().sum())

    assert left("pivots") < 0.7 * left("random")
    assert left("kmeans") < left("random")


def test_jitter_is_raised_until_there_is_a_factor():
    K = torch.ones(4, 4, dtype=torch.float64)
    K[0, 0] -= 1e-5  # not positive definite
    found = factorise(K, 1e-6)
    assert found.share == pytest.approx(1e-4, rel=10)
    assert found.share > 1e-6
    restored = found.L @ found.L.T
    np.testing.assert_allclose(restored - K, found.jitter * np.eye(4), atol=1e-12)
    with pytest.raises(ValueError, match="jitter: expected K"):
        factorise(-torch.eye(3, dtype=torch.float64), 1e-6)
