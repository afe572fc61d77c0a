"""zᵀ P^-½ log(P^-½ A P^-½) P^-½ z from the coefficients of CG, against eigenvalues."""

import numpy as np
import pytest
import torch

from megagp.lanczos import log_quadratic_forms
from megagp.solvers import pcg
from megagp.solvers.pcg import RECOMPUTE

EVERY = slice(None)


def spd(n, condition, seed=0):
    Q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))
    return (Q * np.geomspace(3, 3 / condition, n)) @ Q.T


def power(A, f):
    values, Q = np.linalg.eigh(A)
    return (Q * f(values)) @ Q.T


def dense_forms(A, P, Z):
    root = power(P, lambda v: v**-0.5)
    M = root @ power(root @ A @ root, np.log) @ root
    return np.einsum("it,ij,jt->t", Z, M, Z)


def forms(A, P, Z, rtol, **options):
    inverse = torch.from_numpy(np.linalg.inv(P))
    result = pcg(
        lambda V: torch.from_numpy(A) @ V,
        torch.from_numpy(Z),
        precondition=lambda R: inverse @ R,
        rtol=rtol,
        max_iter=5000,
        verify=False,
        **options,
    )
    return log_quadratic_forms(result.coefficients, EVERY).numpy(), result


@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("n", [1, 2, 70])
@pytest.mark.parametrize("preconditioned", [False, True])
def test_against_eigenvalues(n, condition, preconditioned):
    A = spd(n, condition)
    P = A + 0.5 * spd(n, 3.0, seed=1) if preconditioned else np.eye(n)
    Z = np.random.default_rng(2).normal(size=(n, 5))
    expected = dense_forms(A, P, Z)
    scale = np.abs(Z**2).sum(axis=0)
    found, _ = forms(A, P, Z, 1e-9)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9 * scale.max())


@pytest.mark.parametrize("rtol", [0.1, 0.01])
def test_a_loose_tolerance_is_enough(rtol):
    """Quadrature converges twice as fast as the solve, and from one side."""
    A = spd(200, 1e2)
    Z = np.random.default_rng(2).normal(size=(200, 8))
    found, result = forms(A, np.eye(200), Z, rtol)
    expected = dense_forms(A, np.eye(200), Z)
    assert int(result.iterations.max()) < 60
    assert (np.abs(found - expected) / np.abs(expected)).max() < 2 * rtol**1.5


@pytest.mark.parametrize("min_iter", [5, 40, 300])
def test_iterations_after_convergence_do_no_harm(min_iter):
    A = spd(60, 10.0)
    Z = np.random.default_rng(2).normal(size=(60, 3))
    found, _ = forms(A, np.eye(60), Z, 1.0, min_iter=min_iter)
    np.testing.assert_allclose(found, dense_forms(A, np.eye(60), Z), rtol=0.02)


def test_zero_probes_and_columns_asked_for():
    A = spd(30, 10.0)
    Z = np.random.default_rng(2).normal(size=(30, 3))
    Z[:, 1] = 0
    found, result = forms(A, np.eye(30), Z, 1e-9)
    assert found[1] == 0
    np.testing.assert_allclose(found, dense_forms(A, np.eye(30), Z), rtol=1e-7)
    last = log_quadratic_forms(result.coefficients, slice(2, None))
    np.testing.assert_allclose(last, found[2:])


def test_after_another_start_the_steps_no_longer_count():
    """A false product makes CG begin anew; the steps until then are what the forms rest on."""
    A = spd(60, 50.0)
    calls = 0

    def lying(V):
        nonlocal calls
        calls += 1
        return torch.from_numpy(A) @ V * (1.2 if calls == 30 else 1.0)

    Z = np.random.default_rng(2).normal(size=(60, 2))
    result = pcg(lying, torch.from_numpy(Z), rtol=1e-12, max_iter=500, verify=False)
    assert int(result.iterations.min()) > RECOMPUTE
    assert result.coefficients.alpha[:RECOMPUTE].isfinite().all()
    assert result.coefficients.alpha[RECOMPUTE:].isnan().all()
    found = log_quadratic_forms(result.coefficients, EVERY).numpy()
    np.testing.assert_allclose(found, dense_forms(A, np.eye(60), Z), rtol=0.02)


def test_the_mean_is_the_log_determinant():
    A = spd(100, 50.0)
    Z = np.random.default_rng(0).normal(size=(100, 400))
    found, _ = forms(A, np.eye(100), Z, 1e-4)
    error = found.std() / np.sqrt(400)
    assert abs(found.mean() - np.linalg.slogdet(A)[1]) < 4 * error
