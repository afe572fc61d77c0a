"""Shares of tile pairs: disjoint, complete, and of the size they should have."""

import numpy as np
import pytest

import reference
from megagp import KernelOperator
from megagp.engines import Share
from megagp.kernels import Matern32

PANELS = 60  # of the native engine at n = 61,440


def loads(shares, band):
    """The work of each share of a lower triangle of pairs: half on the diagonal, none beyond
    the band."""
    pairs = [(i, j) for i in range(PANELS) for j in range(i + 1)]
    cost = np.array([0.0 if i - j > band else 0.5 if i == j else 1.0 for i, j in pairs])
    owned = np.array([[share.owns(i, j) for i, j in pairs] for share in shares])
    assert (owned.sum(axis=0) == 1).all()  # each pair has one owner
    return owned @ cost


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(("band", "slack"), [(PANELS, 0.05), (3, 0.2), (1, 0.4)])
def test_equal_shares_have_equal_work_with_and_without_culling(count, band, slack):
    work = loads([Share(i, count) for i in range(count)], band)
    assert work.max() <= (1 + slack) * work.mean()


def test_weights_set_the_sizes():
    weights = (3.0, 1.0, 0.0, 2.0)
    work = loads([Share(i, 4, weights) for i in range(4)], PANELS)
    np.testing.assert_allclose(work / work.sum(), np.array(weights) / 6, atol=0.02)
    assert work[2] == 0


@pytest.mark.parametrize("weights", [(1.0,), (0.0, 0.0), (-1.0, 2.0), (float("nan"), 1.0)])
def test_weights_are_checked(weights):
    with pytest.raises(ValueError, match="weights: expected 2 finite numbers"):
        Share(0, 2, weights)


@pytest.mark.parametrize("engine", ["native", "tiles"])
@pytest.mark.parametrize("n", [1, 3, 257, 1300])
def test_uneven_shares_add_up_to_the_product_and_the_gradient(engine, n):
    rng = np.random.default_rng(n)
    X, V, U = rng.normal(size=(n, 2)), rng.normal(size=(n, 2)), rng.normal(size=(n, 2))
    kernel = Matern32([0.7, 1.3], 1.5)
    shares = [Share(i, 3, (5.0, 1.0, 2.5)) for i in range(3)]
    operator = KernelOperator(X, kernel, engine=engine, dtype="float64")
    product = sum(operator.matmul(V, share) for share in shares)
    np.testing.assert_allclose(
        product, reference.matrix(kernel, X, X) @ V, atol=1e-11 * n, rtol=1e-10
    )
    parts = [operator.gradient(U, V, share=share) for share in shares]
    whole = reference.hyperparameter_gradient(kernel, X, X, U, V)
    for name, expected in whole.items():
        found = sum(part[name] for part in parts)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * n)
