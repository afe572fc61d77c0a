"""P = L Lᵀ + N: its verbs against the dense P, and P against K̂."""

import numpy as np
import pytest
import torch

import reference
from megagp import KernelOperator
from megagp.covariance import Covariance
from megagp.kernels import RBF, Linear, Matern12, Matern32
from megagp.preconditioners import PivotedCholesky, pivoted_cholesky, random_pivots
from megagp.preconditioners.pivoted_cholesky import CHUNK, in_float64
from megagp.solvers import pcg


def problem(n=120, noise=0.01, kernel=None, d=2, seed=0):
    kernel = Matern32(0.8, 1.5) if kernel is None else kernel
    X = np.random.default_rng(seed).normal(size=(n, d))
    variances = noise * np.ones(n)
    return Covariance(KernelOperator(X, kernel), torch.from_numpy(variances))


def preconditioner(covariance, rank, seed=0):
    pivots = random_pivots(covariance.operator, rank, np.random.default_rng(seed))
    return PivotedCholesky(covariance, pivots)


def dense(P):
    L = P.L.double().numpy()
    return L @ L.T + np.diag(P.noise.numpy())


NOISES = {
    "large": 1.0,
    "small": 1e-4,
    "vector": np.linspace(1e-3, 2.0, 120),
    "spread": np.geomspace(1e-6, 1e2, 120),
}


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
@pytest.mark.parametrize("rank", [0, 1, 30, 120])
def test_verbs_are_those_of_one_matrix(noise, rank):
    P = preconditioner(problem(noise=noise), rank)
    assert P.rank == len(P.pivots) <= rank
    R = np.random.default_rng(1).normal(size=(120, 4))
    found = P.solve(torch.from_numpy(R)).numpy()
    # The backward error: how well the answer fits, against how large its terms are.
    misfit = np.abs(dense(P) @ found - R).max()
    assert misfit <= 1e-12 * np.abs(dense(P)).max() * np.abs(found).max() + 1e-9
    np.testing.assert_allclose(found, np.linalg.solve(dense(P), R), rtol=1e-6, atol=1e-6)
    assert P.logdet() == pytest.approx(np.linalg.slogdet(dense(P))[1], rel=1e-9, abs=1e-7)


@pytest.mark.parametrize("stored", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, CHUNK, CHUNK + 1, 4 * CHUNK + 3])
def test_sizes_around_the_chunks(n, stored, monkeypatch):
    if stored is torch.float32:
        monkeypatch.setattr(pivoted_cholesky, "IN_FLOAT64", 0)
    P = preconditioner(problem(n, kernel=RBF()), 5)
    assert P.L.dtype is stored
    R = np.random.default_rng(1).normal(size=(n, 2))
    found = P.solve(torch.from_numpy(R)).numpy()
    L = P.L.double().numpy()
    np.testing.assert_allclose(L @ (L.T @ found) + 0.01 * found, R, atol=1e-9)
    assert P.sample(3, torch.Generator().manual_seed(0)).shape == (n, 3)


@pytest.mark.parametrize("stored", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [slice(7, 7), slice(7, 8), slice(7, 2 * CHUNK + 10)])
def test_rows_of_a_rank_in_float64(rows, stored):
    whole = torch.rand(3 * CHUNK, 3, generator=torch.Generator().manual_seed(0)).to(stored)
    copy = torch.zeros(3 * CHUNK, 3, dtype=torch.float64)
    for some, part in in_float64(whole[rows], rows):
        copy[some] += part
    assert torch.equal(copy[rows], whole[rows].double())
    assert not copy[: rows.start].any()
    assert not copy[rows.stop :].any()


@pytest.mark.parametrize("kernel", [Matern12(), Matern32(0.8, 50.0), RBF(2.0), Linear() + 0.5])
@pytest.mark.parametrize("rank", [1, 20, 60])
def test_never_more_than_the_kernel(kernel, rank):
    """K - L Lᵀ is positive semidefinite, and zero at the pivots."""
    covariance = problem(100, kernel=kernel)
    P = preconditioner(covariance, rank)
    X = covariance.operator.X.numpy()
    K = reference.matrix(kernel, X, X)
    L = P.L.double().numpy()
    left = K - L @ L.T
    size = np.abs(K).max()
    assert np.linalg.eigvalsh(left)[0] > -1e-5 * size
    assert np.abs(left[P.pivots.numpy()]).max() < 1e-4 * size


@pytest.mark.parametrize("rank", [0, 15])
def test_samples_have_the_covariance_P(rank):
    P = preconditioner(problem(12, noise=np.linspace(0.1, 1, 12)), rank)
    count = 20_000
    Z = P.sample(count, torch.Generator().manual_seed(0)).numpy()
    expected = dense(P)
    # The standard error of a product of two Gaussians: sqrt(P_ii P_jj + P_ij²) / sqrt(count).
    spread = np.outer(expected.diagonal(), expected.diagonal()) + expected**2
    assert (np.abs(Z @ Z.T / count - expected) < 4.5 * np.sqrt(spread / count)).all()
    assert (np.abs(Z.mean(axis=1)) < 4.5 * np.sqrt(expected.diagonal() / count)).all()


def test_samples_follow_the_generator():
    P = preconditioner(problem(20), 5)
    draw = [P.sample(3, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(draw[0], draw[1])
    assert not torch.equal(draw[0], draw[2])


@pytest.mark.parametrize(
    ("kernel", "noise"), [(RBF(0.7), 1e-3), (Matern32(1.0), 1e-2), (Matern12(3.0), 1e-1)]
)
def test_more_rank_fewer_iterations(kernel, noise):
    covariance = problem(400, noise, kernel).precise()
    B = torch.from_numpy(np.random.default_rng(2).normal(size=(400, 2)))
    iterations = []
    for rank in (0, 20, 80, 300):
        P = preconditioner(covariance, rank)
        result = pcg(covariance.matmul, B, precondition=P.solve, rtol=1e-4, max_iter=3000)
        assert result.converged
        iterations.append(int(result.iterations.max()))
    assert iterations == sorted(iterations, reverse=True)
    assert iterations[-1] < 0.2 * iterations[0]


def test_of_full_rank_is_the_inverse():
    covariance = problem(80, 0.1, RBF(0.5))
    P = PivotedCholesky(covariance, torch.arange(80))
    X = covariance.operator.X.numpy()
    K_hat = reference.matrix(RBF(0.5), X, X) + 0.1 * np.eye(80)
    R = np.random.default_rng(0).normal(size=(80, 2))
    np.testing.assert_allclose(P.solve(torch.from_numpy(R)), np.linalg.solve(K_hat, R), atol=1e-4)
    assert P.logdet() == pytest.approx(np.linalg.slogdet(K_hat)[1], abs=1e-3)


def test_duplicates_among_pivots_are_survived():
    X = np.tile(np.random.default_rng(0).normal(size=(20, 2)), (3, 1))
    covariance = Covariance(KernelOperator(X, RBF()), torch.full((60,), 1e-3, dtype=torch.float64))
    P = PivotedCholesky(covariance, torch.arange(60))
    K = reference.matrix(RBF(), X, X)
    L = P.L.double().numpy()
    np.testing.assert_allclose(L @ L.T, K, atol=1e-4)
