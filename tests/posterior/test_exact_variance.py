"""Variances by solves: exact with exact solves, a bound with any others."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import reference
from megagp.covariance import Covariance
from megagp.kernels import Matern32
from megagp.operator import KernelOperator
from megagp.posterior.exact_variance import ExactVariance, most_rows, solve_to_excess
from megagp.preconditioners import PivotedCholesky
from megagp.solvers import ConvergenceWarning, SolveResult, Status, pcg

CASES = reference.kernel_cases(3)


def points(n, d=3, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)))


def problem(kernel, n, noise_variance, t=13):
    """X, new points, K̂ and the exact covariance between new points."""
    X, Z = points(n), points(t, seed=1)
    K_hat = reference.matrix(kernel, X.numpy(), X.numpy()) + noise_variance * np.eye(n)
    K = reference.matrix(kernel, X.numpy(), Z.numpy())
    truth = reference.matrix(kernel, Z.numpy(), Z.numpy()) - K.T @ np.linalg.solve(K_hat, K)
    return X, Z, torch.from_numpy(K_hat), truth


def solver(K_hat, error=0.0, status=Status.CONVERGED):
    """Solves with a relative error in every entry of the solution."""
    generator = torch.Generator().manual_seed(0)

    def solve(B):
        x = torch.linalg.solve(K_hat, B)
        x = x * (1 + error * torch.randn(x.shape, dtype=x.dtype, generator=generator))
        residual = (B - K_hat @ x).norm(dim=0) / B.norm(dim=0)
        t = B.shape[1]
        return SolveResult(x, (status,) * t, torch.zeros(t, dtype=torch.long), residual)

    return solve


@pytest.mark.parametrize("noise_variance", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("name", CASES)
def test_exact_solves_give_the_exact_variance(name, noise_variance):
    X, Z, K_hat, truth = problem(CASES[name], 70, noise_variance)
    V = ExactVariance(solver(K_hat), K_hat.matmul, X, CASES[name])
    size = np.abs(reference.matrix(CASES[name], Z.numpy(), Z.numpy())).max()
    np.testing.assert_allclose(V.latent(Z), truth.diagonal(), rtol=0, atol=1e-9 * size)
    np.testing.assert_allclose(V.covariance(Z), truth, rtol=0, atol=1e-9 * size)


@pytest.mark.parametrize("error", [1e-3, 0.1, 2.0])
def test_any_solution_gives_a_bound(error):
    kernel = Matern32(0.9, 1.4)
    X, Z, K_hat, truth = problem(kernel, 70, 1e-2)
    V = ExactVariance(solver(K_hat, error), K_hat.matmul, X, kernel)
    assert np.all(V.latent(Z).numpy() >= truth.diagonal() - 1e-12)
    excess = V.covariance(Z) - torch.from_numpy(truth)
    assert float(torch.linalg.eigvalsh(excess).min()) > -1e-12


def test_excess_is_of_second_order():
    kernel = Matern32(0.9, 1.4)
    X, Z, K_hat, truth = problem(kernel, 70, 1e-2)
    excess = [
        float((ExactVariance(solver(K_hat, e), K_hat.matmul, X, kernel).latent(Z)).sum())
        - truth.trace()
        for e in (1e-2, 1e-3)
    ]
    assert 50 < excess[0] / excess[1] < 200


def test_covariance_is_symmetric_and_positive():
    kernel = Matern32(3.0, 1.4)
    X, Z, K_hat, _ = problem(kernel, 70, 1e-3, t=40)
    C = ExactVariance(solver(K_hat, 0.01), K_hat.matmul, X, kernel).covariance(Z)
    assert torch.equal(C, C.T)
    assert float(torch.linalg.eigvalsh(C).min()) > -1e-12


def test_chunks_change_nothing():
    kernel = Matern32(0.9, 1.4)
    X, Z, K_hat, _ = problem(kernel, 70, 1e-2)
    whole = ExactVariance(solver(K_hat), K_hat.matmul, X, kernel)
    small = ExactVariance(solver(K_hat), K_hat.matmul, X, kernel, memory_budget=30_000)
    np.testing.assert_allclose(small.latent(Z), whole.latent(Z), atol=1e-12)
    np.testing.assert_allclose(small.covariance(Z), whole.covariance(Z), atol=1e-12)


def test_memory_of_a_covariance_is_that_of_its_solutions():
    # 800 new points from 20,000: 128 MB for every n x t matrix in float64, 64 MB in float32.
    code = """
import resource, torch
from megagp.kernels import Matern32
from megagp.posterior.exact_variance import ExactVariance
from megagp.solvers import SolveResult, Status
def solve(B):
    t = B.shape[1]
    return SolveResult(B / 2, (Status.CONVERGED,) * t, torch.zeros(t).long(), torch.zeros(t))
X = torch.randn(20_000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
V = ExactVariance(solve, lambda V: 2 * V, X, Matern32(), memory_budget=16 * 2**20)
V.covariance(X[:20])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
V.covariance(X[:800])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 120e6


def test_rows_of_a_covariance_are_fewer_for_more_points():
    assert [most_rows(n) for n in (1, 100_000, 1_000_000, 10**10)] == [5000, 5000, 536, 1]


def test_one_point_and_far_points():
    kernel = Matern32(0.5, 2.0)
    X = torch.tensor([[0.5]], dtype=torch.float64)
    K_hat = torch.tensor([[2.1]], dtype=torch.float64)
    V = ExactVariance(solver(K_hat), K_hat.matmul, X, kernel)
    np.testing.assert_allclose(V.latent(X), [2.0 - 4.0 / 2.1], rtol=1e-12)
    np.testing.assert_allclose(V.latent(X + 30), [2.0], rtol=1e-12)


def test_unconverged_solves_are_told():
    kernel = Matern32(0.9, 1.4)
    X, Z, K_hat, _ = problem(kernel, 70, 1e-2)
    V = ExactVariance(solver(K_hat, 0.1, Status.MAX_ITER), K_hat.matmul, X, kernel)
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        V.latent(Z)
    with pytest.warns(ConvergenceWarning, match="upper bound only"):
        V.covariance(Z)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("noise_variance", [1e-4, 1e-2])
def test_solves_stop_at_the_excess_that_they_were_given(noise_variance, dtype):
    kernel = Matern32(2.0, 3.0)
    X, Z, K_hat, truth = problem(kernel, 400, noise_variance)
    noise = torch.full((400,), noise_variance, dtype=torch.float64)
    covariance = Covariance(KernelOperator(X, kernel, dtype=dtype), noise)
    P = PivotedCholesky(covariance, torch.arange(0, 400, 10))
    B = torch.from_numpy(reference.matrix(kernel, X.numpy(), Z.numpy()))
    limit = torch.full((len(Z),), 0.02 * noise_variance, dtype=torch.float64)
    result = solve_to_excess(covariance, B, P.solve, limit, max_iter=1000)
    assert result.converged
    R = B - K_hat @ result.x
    true_excess = (R * torch.linalg.solve(K_hat, R)).sum(0)
    assert bool((true_excess <= limit).all())
    V = ExactVariance(lambda _: result, K_hat.matmul, X, kernel)
    found = V.latent(Z).numpy() - truth.diagonal()
    np.testing.assert_allclose(found, true_excess, atol=1e-9)
    # The rule by norms, ‖r‖² / σ² <= limit, asks for more.
    rtol = (limit * noise_variance).sqrt() / B.norm(dim=0)
    by_norm = pcg(covariance.matmul, B, precondition=P.solve, rtol=rtol, verify=False)
    assert int(result.iterations.max()) < int(by_norm.iterations.max())


def test_an_excess_out_of_reach_is_told():
    kernel = Matern32(2.0, 3.0)
    X, Z, _, _ = problem(kernel, 200, 1e-3)
    noise = torch.full((200,), 1e-3, dtype=torch.float64)
    covariance = Covariance(KernelOperator(X, kernel), noise)
    P = PivotedCholesky(covariance, torch.arange(0, 200, 20))
    B = torch.from_numpy(reference.matrix(kernel, X.numpy(), Z.numpy()))
    limit = torch.full((len(Z),), 1e-12, dtype=torch.float64)
    result = solve_to_excess(covariance, B, P.solve, limit, max_iter=2)
    assert not result.converged
    assert int(result.iterations.max()) <= 2
