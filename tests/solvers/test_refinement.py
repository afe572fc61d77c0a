"""Solves with entries in float32: held to residuals in float64, evaluated here."""

import numpy as np
import pytest
import torch

import reference
from megagp import KernelOperator
from megagp.covariance import Covariance
from megagp.kernels import RBF, Matern12, Matern32, Matern52
from megagp.preconditioners import PivotedCholesky, random_pivots
from megagp.solvers import Status, solve


def problem(kernel, n, noise, d=3, seed=0, **options):
    """K̂ as an operator and as a NumPy matrix, and right-hand sides like data."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    variances = np.full(n, noise)
    K_hat = reference.matrix(kernel, X, X) + np.diag(variances)
    Y = np.column_stack([np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=n), np.ones(n)])
    covariance = Covariance(KernelOperator(X, kernel, **options), torch.from_numpy(variances))
    return covariance, K_hat, torch.from_numpy(Y)


def preconditioner(covariance, rank):
    rng = np.random.default_rng(0)
    return PivotedCholesky(covariance, random_pivots(covariance.operator, rank, rng)).solve


def residuals(K_hat, x, B):
    R = B.numpy() - K_hat @ x.numpy()
    return np.linalg.norm(R, axis=0) / np.linalg.norm(B.numpy(), axis=0)


KERNELS = {
    "matern12": Matern12(0.8),
    "matern32": Matern32([0.5, 1.0, 2.0], 1.4),
    "matern52": Matern52(1.5),
    "rbf": RBF(1.0, 0.7),
}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("engine", ["native", "tiles"])
def test_float32_entries_reach_a_float64_residual(kernel, engine):
    n = 600 if engine == "native" else 150
    covariance, K_hat, B = problem(kernel, n, 1e-4, engine=engine)
    result = solve(covariance, B, preconditioner(covariance, n // 3), rtol=1e-8, max_iter=3000)
    assert result.converged, result.explain(1e-8)
    assert residuals(K_hat, result.x, B).max() <= 1.01e-8
    np.testing.assert_allclose(result.residual, residuals(K_hat, result.x, B), rtol=0.05)
    # Of float32 entries alone the residual would be of the order of 1e-7 |x| / |b|.
    assert result.precision in ("float32, refined", "float64")


@pytest.mark.parametrize("noise", [1e-1, 1e-3, 1e-5, 1e-8])
@pytest.mark.parametrize("rtol", [0.5, 1e-2, 1e-5, 1e-10])
@pytest.mark.parametrize("rank", [0, 60])
def test_never_claims_what_is_not_so(noise, rtol, rank):
    covariance, K_hat, B = problem(RBF(0.8), 150, noise)
    result = solve(covariance, B, preconditioner(covariance, rank), rtol=rtol, max_iter=300)
    found = residuals(K_hat, result.x, B)
    np.testing.assert_allclose(result.residual, found, rtol=0.05, atol=1e-12)
    for status, r in zip(result.status, found, strict=True):
        assert (status is Status.CONVERGED) == (r <= rtol) or abs(r / rtol - 1) < 0.01
    assert found.max() <= 1.0 + 1e-12  # never worse than where it began
    assert int(result.iterations.max()) <= 300


@pytest.mark.parametrize("rtol", [0.6, 0.5, 0.4, 0.1, 1e-3])
def test_a_loose_tolerance_needs_float32_alone(rtol):
    covariance, _, B = problem(Matern32(), 300, 1e-2)
    result = solve(covariance, B, rtol=rtol)
    assert result.converged
    assert result.precision == "float32"


def test_says_float64_where_entries_were():
    covariance, K_hat, B = problem(Matern32(), 200, 1e-2, dtype="float64")
    result = solve(covariance, B, rtol=1e-9)
    assert result.converged
    assert result.precision == "float64"
    assert residuals(K_hat, result.x, B).max() <= 1.01e-9


@pytest.mark.parametrize("gain", [1e-5, 0.1])
def test_the_natural_norm(gain):
    covariance, K_hat, B = problem(Matern32([0.5, 1.0, 2.0], 1.4), 600, 1e-4)
    P_inverse = preconditioner(covariance, 200)
    result = solve(covariance, B, P_inverse, rtol=1e-3, natural=True, gain=gain)
    assert result.converged
    R = B.numpy() - K_hat @ result.x.numpy()
    np.testing.assert_allclose(result.R, R, atol=1e-9)

    def size(T):
        return np.sqrt((T * P_inverse(torch.from_numpy(T)).numpy()).sum(0))

    np.testing.assert_allclose(result.residual, size(R) / size(B.numpy()), rtol=1e-4)
    assert (result.residual <= 1e-3).all()


def test_goes_on_in_float64_where_float32_fails():
    """A matrix that float32 entries turn into another one: noise below their roundoff."""
    covariance, K_hat, B = problem(RBF(0.7), 400, 1e-9, d=2)
    result = solve(covariance, B, preconditioner(covariance, 400), rtol=1e-3, max_iter=2000)
    assert result.precision == "float64"
    found = residuals(K_hat, result.x, B)
    np.testing.assert_allclose(result.residual, found, rtol=0.1, atol=1e-9)
    assert result.converged == (found.max() <= 1e-3)


def test_warm_start():
    covariance, K_hat, B = problem(Matern32(), 200, 1e-2)
    exact = torch.from_numpy(np.linalg.solve(K_hat, B.numpy()))
    before = exact.clone()
    result = solve(covariance, B, rtol=1e-6, x0=exact)
    assert result.converged
    assert not result.iterations.any()
    assert torch.equal(result.x, before)
    assert torch.equal(exact, before)
    far = solve(covariance, B, rtol=1e-6, x0=100 * torch.ones_like(B))
    assert residuals(K_hat, far.x, B).max() <= 1.01e-6


def test_a_bad_correction_is_not_taken():
    """However the solver comes out, x is at least as good as the start."""
    covariance, K_hat, B = problem(RBF(2.0), 150, 1e-12, d=1)
    start = torch.from_numpy(np.linalg.lstsq(K_hat, B.numpy(), rcond=1e-7)[0])
    before = residuals(K_hat, start, B)
    result = solve(covariance, B, rtol=1e-13, max_iter=50, x0=start)
    assert (residuals(K_hat, result.x, B) <= 1.01 * before + 1e-9).all()
    assert not result.converged


@pytest.mark.parametrize("n", [1, 2])
def test_tiny(n):
    covariance, K_hat, B = problem(Matern32(), n, 1e-3)
    result = solve(covariance, B, preconditioner(covariance, 5), rtol=1e-12)
    assert result.converged
    np.testing.assert_allclose(result.x, np.linalg.solve(K_hat, B.numpy()), rtol=1e-10)


def test_zeros_and_duplicates():
    covariance, _, B = problem(Matern32(), 50, 1e-3)
    X = covariance.operator.X.clone()
    X[10:20] = X[0]
    twins = Covariance(KernelOperator(X, Matern32()), covariance.noise)
    B = torch.cat([B, torch.zeros(50, 1)], dim=1)
    result = solve(twins, B, rtol=1e-9)
    assert result.converged
    assert not result.x[:, 2].any()


def test_iterations_in_all_are_limited():
    covariance, K_hat, B = problem(Matern32(0.5), 300, 1e-4)
    result = solve(covariance, B, rtol=1e-9, max_iter=5)
    assert result.status == (Status.MAX_ITER,) * 2
    assert result.iterations.tolist() == [5, 5]
    np.testing.assert_allclose(result.residual, residuals(K_hat, result.x, B), rtol=1e-6)


def test_history_goes_from_the_first_residual_to_the_last():
    """In float64, where the residual that is claimed and the one that is found agree."""
    covariance, K_hat, B = problem(Matern32(1.0), 200, 1e-2, dtype="float64")
    x0 = 0.5 * torch.from_numpy(np.linalg.solve(K_hat, B.numpy()))
    for start, first in ((None, 1.0), (x0, 0.5)):
        result = solve(covariance, B, rtol=1e-6, x0=start)
        assert result.history.shape == (int(result.iterations.max()) + 1, 2)
        np.testing.assert_allclose(result.history[0], first, rtol=1e-9)
        np.testing.assert_allclose(result.history[-1], result.residual, rtol=1e-3)
        again = solve(covariance, B, rtol=1e-6, x0=result.x)
        assert again.history.shape == (1, 2)
