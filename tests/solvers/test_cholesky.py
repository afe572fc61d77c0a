"""The dense way: solutions, determinants, and what it says of a singular matrix."""

import numpy as np
import pytest
import torch

import reference
from megagp import KernelOperator
from megagp.covariance import Covariance
from megagp.kernels import RBF, Linear, Matern32
from megagp.solvers import Cholesky


def problem(kernel, n, noise, d=2, **options):
    X = np.random.default_rng(0).normal(size=(n, d))
    variances = noise * np.ones(n)
    covariance = Covariance(KernelOperator(X, kernel, **options), torch.from_numpy(variances))
    return covariance, reference.matrix(kernel, X, X) + np.diag(variances)


@pytest.mark.parametrize("kernel", [Matern32([0.6, 1.4], 2.0), RBF(3.0), Linear() + 0.5], ids=str)
@pytest.mark.parametrize("n", [1, 2, 90])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_solution_determinant_and_inverse(kernel, n, dtype):
    covariance, K_hat = problem(kernel, n, np.linspace(1e-3, 1, n), dtype=dtype)
    B = np.random.default_rng(1).normal(size=(n, 3))
    factor = Cholesky(covariance)
    result = factor.solve(torch.from_numpy(B))
    assert result.converged
    assert result.precision == "float64"
    np.testing.assert_allclose(result.x, np.linalg.solve(K_hat, B), rtol=1e-8, atol=1e-9)
    true = np.linalg.norm(B - K_hat @ result.x.numpy(), axis=0) / np.linalg.norm(B, axis=0)
    assert true.max() < 1e-11
    assert float(result.residual.max()) < 1e-11
    assert factor.logdet() == pytest.approx(np.linalg.slogdet(K_hat)[1], rel=1e-9, abs=1e-9)
    np.testing.assert_allclose(factor.inverse(), np.linalg.inv(K_hat), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("n", [2, 5, 40])
def test_duplicates_without_noise(n):
    X = np.random.default_rng(n).normal(size=(n, 2))
    X[-1] = X[0]
    noise = torch.full((n,), 1e-18, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"noise_variance: expected .* positive definite.*raise"):
        Cholesky(Covariance(KernelOperator(X, RBF()), noise))


def test_duplicates_with_noise():
    X = np.repeat(np.random.default_rng(0).normal(size=(10, 2)), 4, axis=0)
    noise = torch.full((40,), 1e-6, dtype=torch.float64)
    B = torch.ones(40, 1, dtype=torch.float64)
    result = Cholesky(Covariance(KernelOperator(X, RBF()), noise)).solve(B)
    K_hat = reference.matrix(RBF(), X, X) + 1e-6 * np.eye(40)
    assert np.linalg.norm(K_hat @ result.x.numpy() - 1) < 1e-8
