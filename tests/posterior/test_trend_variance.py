"""What an unknown mean adds to variances: bounds from a solve that is not exact."""

import numpy as np
import pytest
import torch

import reference
from megagp import KernelOperator
from megagp.covariance import Covariance
from megagp.kernels import Matern32
from megagp.mean import basis
from megagp.posterior.trend_variance import EXCESS, TrendVariance
from megagp.preconditioners import PivotedCholesky
from megagp.solvers import ConvergenceWarning

KERNEL = Matern32([0.6, 1.0, 3.0], 2.0)


def problem(noise_variance, mean, n=400):
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.normal(size=(n, 3)))
    noise = torch.from_numpy(rng.uniform(noise_variance, 3 * noise_variance, n))
    covariance = Covariance(KernelOperator(X, KERNEL), noise)
    X_new = torch.from_numpy(rng.normal(size=(50, 3)) * rng.choice([1, 4], size=(50, 1)))
    return covariance, basis(X, mean), X_new, basis(X_new, mean).numpy()


def solved(covariance, H, weights, max_iter=1000):
    P = PivotedCholesky(covariance, torch.arange(0, len(H), 5))
    return TrendVariance(covariance, H, weights, P.solve, max_iter)


def exact(covariance, H, X_new, h):
    """G, T, u and latent variances without the part of the mean, in NumPy."""
    X, H = covariance.operator.X.numpy(), H.numpy()
    K_hat = reference.matrix(KERNEL, X, X) + np.diag(covariance.noise.numpy())
    K = reference.matrix(KERNEL, X, X_new.numpy())
    G = np.linalg.solve(K_hat, H)
    latent = 2.0 - np.sum(K * np.linalg.solve(K_hat, K), axis=0)
    return K_hat, K, G, np.linalg.inv(H.T @ G), h - K.T @ G, latent


@pytest.mark.parametrize("mean", ["constant", "linear"])
@pytest.mark.parametrize("noise_variance", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("rough", [0.0, 0.01, 0.3, 100.0])
def test_a_bound_that_is_close(noise_variance, mean, rough):
    covariance, H, X_new, h = problem(noise_variance, mean)
    K_hat, K, G, T, U, latent = exact(covariance, H, X_new, h)
    off = np.random.default_rng(1).normal(size=G.shape) * np.abs(G).mean(0)
    found = solved(covariance, H, torch.from_numpy(G + rough * off))
    R = H.numpy() - K_hat @ found.G.numpy()
    trace = np.trace(T @ R.T @ (R / covariance.noise.numpy()[:, None]))
    assert found.excess == pytest.approx(trace, rel=0.01, abs=1e-12)
    # The tolerance is on the median of the noise, and the least of it counts.
    assert found.excess <= 2 * EXCESS
    assert np.linalg.eigvalsh(found.T.numpy() - T).min() > -1e-7 * T.max()
    missing = found.of(torch.from_numpy(h - K.T @ found.G.numpy()), torch.from_numpy(latent))
    truth = np.sum(U @ T * U, axis=1)
    assert np.all(missing.numpy() >= truth * (1 - 1e-6) - 1e-12)
    total = np.sqrt((missing.numpy() + latent) / (truth + latent))
    assert total.max() < 1 + 0.75 * np.sqrt(2 * EXCESS)
    assert np.median(total) < 1.005


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_a_solve_that_ends_too_early_is_told_and_still_a_bound(start):
    covariance, H, X_new, h = problem(1e-4, "constant")
    _, K, _, T, U, latent = exact(covariance, H, X_new, h)
    with pytest.warns(ConvergenceWarning, match="due to the mean is an upper bound only"):
        found = solved(covariance, H, torch.full_like(H, start), max_iter=2)
    assert found.excess > EXCESS
    missing = found.of(torch.from_numpy(h - K.T @ found.G.numpy()), torch.from_numpy(latent))
    assert np.all(missing.numpy() >= np.sum(U @ T * U, axis=1))
