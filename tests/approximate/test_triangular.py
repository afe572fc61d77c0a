"""Against plain products of dense matrices."""

import numpy as np
import pytest
import torch

from megagp.approximate.triangular import (
    LEAF,
    congruent,
    gram,
    inverse,
    inverse_cholesky,
    lower_product,
    mirrored,
    triangular_product,
)

SIZES = [1, LEAF, LEAF + 1, 3 * LEAF + 5]


def tensor(*shape):
    return torch.from_numpy(np.random.default_rng(sum(shape)).standard_normal(shape))


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("upper", [False, True])
def test_triangular_product(m, upper):
    T, B = tensor(m, m), tensor(m, 7)
    T = T.triu() if upper else T.tril()
    np.testing.assert_allclose(triangular_product(T, B, upper), T @ B, atol=1e-12 * m)
    np.testing.assert_allclose(triangular_product(T.T, B, not upper), T.T @ B, atol=1e-12 * m)
    out = torch.empty(7, m, dtype=torch.float64)
    triangular_product(T, B, upper, out=out.T)
    np.testing.assert_allclose(out, (T @ B).T, atol=1e-12 * m)


@pytest.mark.parametrize("m", SIZES)
def test_lower_product(m):
    A, B = tensor(m, 9), tensor(9, m)
    found = lower_product(A, B)
    np.testing.assert_allclose(found, (A @ B).tril(), atol=1e-12)
    square = mirrored(found)
    np.testing.assert_array_equal(square, square.T)
    np.testing.assert_array_equal(square.tril(), found)


@pytest.mark.parametrize("m", SIZES)
def test_congruent(m):
    W, S = tensor(m, m).tril(), tensor(m, m)
    S = S + S.T
    found = congruent(W, S.tril())
    np.testing.assert_allclose(found, W.T @ S @ W, atol=1e-12 * m**2)
    np.testing.assert_array_equal(found, found.T)


@pytest.mark.parametrize("m", SIZES)
def test_gram(m):
    R = tensor(m, m).tril()
    np.testing.assert_allclose(gram(R), R.T @ R, atol=1e-12 * m)


@pytest.mark.parametrize("m", SIZES)
def test_inverse(m):
    L = tensor(m, m).tril() / m
    L.diagonal().add_(2.0)
    found = inverse(L)
    np.testing.assert_array_equal(found.triu(1), 0)
    np.testing.assert_allclose(found @ L, np.eye(m), atol=1e-12)


@pytest.mark.parametrize("m", SIZES)
def test_inverse_cholesky(m):
    B = tensor(m, m + 3)
    K = B @ B.T / m + torch.eye(m, dtype=torch.float64)
    found = inverse_cholesky(K.tril())
    np.testing.assert_array_equal(found.triu(1), 0)
    expected = torch.linalg.inv(torch.linalg.cholesky(K))
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("bad", [0, LEAF, 2 * LEAF + 4])
def test_what_is_not_positive_definite_has_no_inverse_factor(bad):
    K = torch.eye(2 * LEAF + 5, dtype=torch.float64)
    K[bad, bad] = -1.0
    assert inverse_cholesky(K.clone()) is None
    K[bad, bad] = torch.nan
    assert inverse_cholesky(K) is None


def test_products_with_the_inverse_factor_are_better_than_float32():
    """Of a covariance matrix with the jitter that is the least that training adds."""
    x = torch.linspace(0, 1, 2 * LEAF + 40, dtype=torch.float64)
    K = torch.exp(-0.5 * ((x[:, None] - x) / 0.3) ** 2)
    K.diagonal().add_(1e-6)
    L, B = torch.linalg.cholesky(K), K[:, ::7]
    solved = torch.linalg.solve_triangular(L, B, upper=False)
    found = triangular_product(inverse_cholesky(K.clone()), B, upper=False)
    np.testing.assert_allclose(found, solved, atol=3e-8)
