"""P = L Lᵀ + S: its verbs against the dense P, and P against K̂."""

import numpy as np
import pytest
import torch

import reference
from megagp import KernelOperator
from megagp.covariance import Covariance
from megagp.kernels import RBF, Constant, Kernel, Linear, Matern12, Matern32, Positive
from megagp.neighbours import metric_features
from megagp.preconditioners import (
    FullScale,
    PivotedCholesky,
    Predecessors,
    nearest_predecessors,
    pivoted_cholesky,
    random_pivots,
)
from megagp.solvers import pcg


def problem(n=150, noise=0.01, kernel=None, d=2):
    kernel = Matern32(0.8, 1.5) if kernel is None else kernel
    X = np.random.default_rng(0).normal(size=(n, d))
    return Covariance(KernelOperator(X, kernel), torch.from_numpy(noise * np.ones(n)))


def make(covariance, rank, m):
    rng = np.random.default_rng(0)
    pivots = random_pivots(covariance.operator, rank, rng)
    points = metric_features(covariance.operator.kernel, covariance.operator.X)
    return FullScale(covariance, pivots, nearest_predecessors(points, m, pivots, rng))


def matrix(covariance):
    X = covariance.operator.X.numpy()
    return reference.matrix(covariance.operator.kernel, X, X) + np.diag(covariance.noise.numpy())


def plain(covariance, pivots, predecessors):
    """P as the module's docstring has it, point by point."""
    K_hat = matrix(covariance)
    K = K_hat - np.diag(covariance.noise.numpy())
    n, S = len(K), pivots.numpy()
    low = K[:, S] @ np.linalg.solve(K[np.ix_(S, S)], K[S]) if len(S) else np.zeros((n, n))
    R = K_hat - low
    U = np.zeros((n, n))
    for i in range(n):
        N = predecessors.nearest[i][predecessors.nearest[i] >= 0]
        w = np.linalg.solve(R[np.ix_(N, N)], R[N, i])
        U[i, i], U[i, N] = 1.0, -w
        U[i] /= np.sqrt(R[i, i] - R[i, N] @ w)
    return low + np.linalg.inv(U.T @ U)


CASES = {
    "Matern32": (Matern32(0.8, 1.5), 0.01, 30, 6),
    "ARD": (Matern32([0.3, 2.0], 0.7), 0.001, 20, 5),
    "rough": (Matern12(0.5), 0.1, 10, 8),
    "no pivots": (RBF(0.3), 0.05, 0, 10),
    "no neighbours": (Matern32(0.5), 0.05, 20, 0),
    "neither": (Matern32(0.5), 0.05, 0, 0),
    "noise by point": (Matern32(0.8), np.linspace(1e-3, 2.0, 150), 25, 6),
    "sum": (Matern32(0.4) + Linear(0.5), 0.02, 15, 4),
}


@pytest.mark.parametrize(("kernel", "noise", "rank", "m"), CASES.values(), ids=CASES)
def test_verbs_are_those_of_the_matrix_as_written(kernel, noise, rank, m):
    covariance = problem(noise=noise, kernel=kernel)
    rng = np.random.default_rng(0)
    pivots = random_pivots(covariance.operator, rank, rng)
    points = metric_features(kernel, covariance.operator.X)
    predecessors = nearest_predecessors(points, m, pivots, rng)
    P, dense = FullScale(covariance, pivots, predecessors), plain(covariance, pivots, predecessors)
    R = np.random.default_rng(1).normal(size=(150, 4))
    expected = np.linalg.solve(dense, R)
    found = P.solve(torch.from_numpy(R)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
    assert P.logdet() == pytest.approx(np.linalg.slogdet(dense)[1], rel=1e-6, abs=1e-4)


def test_all_predecessors_make_it_exact():
    covariance = problem(80)
    order = np.arange(80)
    nearest = np.full((80, 79), -1)
    for i in range(80):
        nearest[i, :i] = order[:i]
    P = FullScale(covariance, torch.zeros(0, dtype=torch.long), Predecessors(order, nearest))
    R = np.random.default_rng(1).normal(size=(80, 2))
    np.testing.assert_allclose(
        P.solve(torch.from_numpy(R)), np.linalg.solve(matrix(covariance), R), rtol=1e-7, atol=1e-7
    )
    assert P.logdet() == pytest.approx(np.linalg.slogdet(matrix(covariance))[1], abs=1e-8)


def test_without_neighbours_it_is_pivoted_cholesky():
    covariance = problem(200)
    P = make(covariance, 40, 0)
    other = PivotedCholesky(covariance, P.pivots)
    R = torch.randn(200, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    # Pivoted Cholesky leaves out the variance that is neither of the pivots nor noise.
    left = covariance.operator.diagonal() - other.L.square().sum(1)
    full = Covariance(covariance.operator, covariance.noise + left.clamp(min=0.0))
    torch.testing.assert_close(P.solve(R), PivotedCholesky(full, P.pivots).solve(R))


def test_samples_have_the_covariance_of_P():
    covariance = problem(60, noise=0.1)
    P = make(covariance, 8, 4)
    draws = P.sample(40_000, torch.Generator().manual_seed(0)).numpy()
    dense = np.linalg.inv(P.solve(torch.eye(60, dtype=torch.float64)).numpy())
    # The variance of an entry of the sample covariance is (p_ii p_jj + p_ij²) / count.
    spread = np.sqrt((np.outer(dense.diagonal(), dense.diagonal()) + dense**2) / 40_000)
    assert (np.abs(draws @ draws.T / 40_000 - dense) < 5 * spread).all()


def test_far_fewer_iterations_than_the_pivots_alone():
    covariance = problem(1500, noise=1e-3, kernel=Matern32(0.3), d=4)
    full = make(covariance, 60, 16)
    plain = PivotedCholesky(covariance, full.pivots)
    B = torch.randn(1500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    steps = {}
    for name, P in (("full", full), ("plain", plain)):
        result = pcg(covariance.matmul, B, precondition=P.solve, rtol=1e-3)
        assert result.converged
        steps[name] = int(result.iterations.max())
    assert 3 * steps["full"] < steps["plain"]


def test_float32_storage_is_of_one_matrix(monkeypatch):
    monkeypatch.setattr(pivoted_cholesky, "IN_FLOAT64", 0)
    monkeypatch.setattr(pivoted_cholesky, "CHUNK", 64)
    covariance = problem(200)
    P = make(covariance, 40, 5)
    assert P._B.dtype == torch.float32
    inverse = P.solve(torch.eye(200, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(inverse, inverse.T, rtol=1e-9, atol=1e-9)
    assert P.logdet() == pytest.approx(-np.linalg.slogdet(inverse)[1], rel=1e-9)


def test_duplicates_and_a_constant_kernel():
    X = np.repeat(np.random.default_rng(0).normal(size=(40, 2)), 3, axis=0)
    for kernel in (Matern32(0.5), Constant(2.0)):
        noise = torch.full((120,), 1e-6, dtype=torch.float64)
        covariance = Covariance(KernelOperator(X, kernel), noise)
        P = make(covariance, 10, 6)
        R = torch.ones(120, 1, dtype=torch.float64)
        assert bool(P.solve(R).isfinite().all())
        assert np.isfinite(P.logdet())


def test_a_kernel_of_ones_own():
    class Cauchy(Kernel):
        lengthscale = Positive()

        def evaluate(self, X, Z):
            return 1 / (1 + torch.cdist(X, Z).square() / self.lengthscale**2)

    covariance = problem(100, kernel=Cauchy(lengthscale=0.5))
    P = make(covariance, 10, 20)
    B = torch.ones(100, 1, dtype=torch.float64)
    K_hat = covariance.operator.block() + torch.diag(covariance.noise)
    result = pcg(lambda V: K_hat @ V, B, precondition=P.solve, rtol=1e-6)
    assert result.converged
    assert int(result.iterations.max()) < 15
