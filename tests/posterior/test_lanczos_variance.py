"""The Lanczos cache: exact at full rank, never below, graceful where the space ends."""

import numpy as np
import pytest
import torch

import reference
from megagp.kernels import Constant, Linear, Matern32
from megagp.posterior.lanczos_variance import LanczosVariance, lanczos, lanczos_start

CASES = reference.kernel_cases(3)


def points(n, d=3, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)))


def problem(kernel, n, noise_variance, t=12, d=3):
    """X, noise, start, new points, K̂ and the exact variances."""
    X, Z, start = points(n, d), points(t, d, 1), points(n, 1, 2)[:, 0]
    K_hat = reference.matrix(kernel, X.numpy(), X.numpy()) + noise_variance * np.eye(n)
    K = reference.matrix(kernel, X.numpy(), Z.numpy())
    prior = reference.matrix(kernel, Z.numpy(), Z.numpy()).diagonal()
    truth = prior - np.sum(K * np.linalg.solve(K_hat, K), axis=0)
    noise = torch.full((n,), noise_variance, dtype=torch.float64)
    return X, noise, start, Z, torch.from_numpy(K_hat), truth


@pytest.mark.parametrize("name", CASES)
def test_full_rank_is_exact(name):
    X, noise, start, Z, K_hat, truth = problem(CASES[name], 60, 0.1)
    V = LanczosVariance(K_hat.matmul, X, CASES[name], noise, start, rank=60)
    np.testing.assert_allclose(V.latent(Z), truth, rtol=0, atol=1e-8)


@pytest.mark.parametrize("noise_variance", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("name", CASES)
def test_never_below_and_tighter_with_rank(name, noise_variance):
    X, noise, start, Z, K_hat, truth = problem(CASES[name], 80, noise_variance)
    prior = CASES[name].diagonal(Z)
    before = prior
    for rank in (1, 5, 20, 60):
        V = LanczosVariance(K_hat.matmul, X, CASES[name], noise, start, rank=rank)
        found = V.latent(Z)
        assert np.all(found.numpy() >= truth - 1e-8 * prior.numpy())
        assert np.all(found.numpy() <= before.numpy() + 1e-8 * prior.numpy())
        before = found


def test_basis_is_orthonormal_and_projects():
    *_, K_hat, _ = problem(Matern32(2.0), 200, 1e-4)
    Q, T = lanczos(K_hat.matmul, torch.ones(200, dtype=torch.float64), 90)
    np.testing.assert_allclose(Q.T @ Q, np.eye(90), atol=1e-12)
    np.testing.assert_allclose(Q.T @ K_hat @ Q, T, atol=1e-10)


@pytest.mark.parametrize(("kernel", "rank"), [(Constant(2.0), 2), (Linear(1.0), 4)])
def test_an_exhausted_space_ends_early(kernel, rank):
    """K̂ has as many distinct eigenvalues as K has rank, and one more."""
    X, noise, start, Z, K_hat, truth = problem(kernel, 50, 0.1)
    V = LanczosVariance(K_hat.matmul, X, kernel, noise, start, rank=50)
    assert V.rank == rank
    np.testing.assert_allclose(V.latent(Z), truth, atol=1e-9)


def test_one_point_and_more_rank_than_points():
    X, noise, start, Z, K_hat, truth = problem(Matern32(0.7, 1.3), 1, 0.1)
    V = LanczosVariance(K_hat.matmul, X, Matern32(0.7, 1.3), noise, start, rank=10)
    assert V.rank == 1
    np.testing.assert_allclose(V.latent(Z), truth, atol=1e-12)


def test_chunks_change_nothing():
    kernel = Matern32(0.7, 1.3)
    X, noise, start, Z, K_hat, _ = problem(kernel, 90, 0.01, t=30)
    whole = LanczosVariance(K_hat.matmul, X, kernel, noise, start, rank=20)
    small = LanczosVariance(K_hat.matmul, X, kernel, noise, start, rank=20, memory_budget=4000)
    np.testing.assert_allclose(small.latent(Z), whole.latent(Z), rtol=1e-12)


def test_errors_name_the_argument():
    X, noise, start, _, K_hat, _ = problem(Matern32(), 5, 0.1)
    with pytest.raises(ValueError, match="rank: expected at least 1, got 0"):
        LanczosVariance(K_hat.matmul, X, Matern32(), noise, start, rank=0)
    with pytest.raises(ValueError, match="start: expected a vector other than 0"):
        LanczosVariance(K_hat.matmul, X, Matern32(), noise, 0 * start)


def test_the_start_is_the_sum_of_the_outputs_unless_that_is_nothing():
    Y = points(50, 2)
    assert torch.equal(lanczos_start(Y), Y.sum(1))
    for nothing in (0 * Y, torch.stack([Y[:, 0], -Y[:, 0] * (1 + 1e-7)], dim=1)):
        assert torch.equal(lanczos_start(nothing), torch.ones(50, dtype=torch.float64))
