"""Both bounds and their gradients against dense float64, and against each other."""

import numpy as np
import pytest
import torch

import reference
from approximate import dense
from megagp.approximate import cross as streaming
from megagp.approximate import sgpr, triangular
from megagp.approximate.cross import CrossCovariance
from megagp.approximate.factor import factorise
from megagp.approximate.sgpr import collapse, gradient, moments
from megagp.approximate.svgp import (
    Batch,
    Variational,
    natural_step,
    root_gradient,
    stochastic_bound,
    whitened,
)
from megagp.kernels import Matern32

N, M, D, P, NOISE, SHARE = 60, 7, 3, 2, 0.1, 1e-4
KERNELS = reference.kernel_cases(D)


def tensor(*shape, seed):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


X, Z, Y = tensor(N, D, seed=0), tensor(M, D, seed=1), tensor(N, P, seed=2)
H = torch.cat([torch.ones(N, 1, dtype=torch.float64), X[:, :1]], 1)
TH = torch.cat([Y, H], 1)


@pytest.fixture(params=[2048, 16], autouse=True, ids=["one tile", "many tiles"])
def _rows(request, monkeypatch):
    """With many tiles, sums in strips and tiles of which only the first few are kept."""
    monkeypatch.setattr(streaming, "ROWS", request.param)
    if request.param == 16:
        monkeypatch.setattr(streaming, "STRIP", 8 * M * 5)
        monkeypatch.setattr(streaming, "KEPT", 3 * 2 * 8 * 16 * M)
        monkeypatch.setattr(sgpr, "STRIP", 5)
        monkeypatch.setattr(triangular, "LEAF", 2)


def leaves(kernel, *others):
    values = {name: v.detach().clone().requires_grad_() for name, v in kernel.values().items()}
    return values, [T.detach().clone().requires_grad_() for T in others]


def close(found, expected, rtol=1e-6):
    scale = float(expected.abs().max())
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=rtol * scale + 1e-9)


def at(kernel, Z=Z, noise=NOISE, share=SHARE):
    tiles = CrossCovariance(kernel, Z).over(X)
    factor = factorise(tiles.cross.square(), share)
    return collapse(moments(tiles, TH, factor), N, P, noise), tiles


@pytest.mark.parametrize("name", KERNELS)
def test_collapsed_bound_and_gradient(name):
    kernel = KERNELS[name]
    values, (noise, inducing) = leaves(kernel, torch.tensor(NOISE, dtype=torch.float64), Z)
    expected = dense.collapsed(kernel.bind(values), noise, X, Y, H, inducing, SHARE)
    by = torch.autograd.grad(
        expected, [noise, inducing, *values.values()], allow_unused=True, materialize_grads=True
    )
    found, tiles = at(kernel)
    assert found.value == pytest.approx(expected.item(), rel=1e-9)
    by_value, by_Z = gradient(found, tiles, TH, N, P)
    close(by_value["noise_variance"], by[0])
    close(by_Z, by[1])
    for key, derivative in zip(values, by[2:], strict=True):
        close(by_value[key], derivative)


@pytest.mark.parametrize("name", ["matern32-ard", "matern12", "linear", "nested"])
def test_stochastic_bound_and_gradient(name):
    kernel = KERNELS[name]
    mu, root = tensor(M, P, seed=3), tensor(M, M, seed=4).tril()
    noise = torch.tensor(NOISE, dtype=torch.float64)
    values, others = leaves(kernel, noise, Z, Y, mu, root)
    expected = dense.stochastic(
        kernel.bind(values), others[0], X, others[2], others[1], *others[3:], 5 * N, SHARE
    )
    by = torch.autograd.grad(
        expected, [*others, *values.values()], allow_unused=True, materialize_grads=True
    )
    start = whitened(CrossCovariance(kernel, Z).over(X), SHARE)
    q = Variational(mu, root.T)
    found = stochastic_bound(start, Batch(X, Y, 5 * N), NOISE, q)
    assert found.value == pytest.approx(expected.item(), rel=1e-9)
    close(found.hyperparameters["noise_variance"], by[0])
    close(found.Z, by[1])
    close(found.errors, by[2])
    close(found.mu, by[3])
    close(root_gradient(start.A, found.RA, q.R, P, 5 / NOISE), by[4].tril())
    for key, derivative in zip(values, by[5:], strict=True):
        close(found.hyperparameters[key], derivative)


def test_float32_where_R_is_costs_a_step_no_more_than_roundoff():
    kernel = KERNELS["matern32-ard"]
    q = Variational(tensor(M, P, seed=3), tensor(M, M, seed=4).triu())
    start = whitened(CrossCovariance(kernel, Z).over(X), SHARE)
    double, single = (
        stochastic_bound(start, Batch(X, Y, 5 * N), NOISE, Variational(q.mu, R))
        for R in (q.R, q.R.float())
    )
    assert single.value == pytest.approx(double.value, rel=1e-6)
    assert single.value != double.value
    assert single.RA.dtype == torch.float32
    for key, derivative in double.hyperparameters.items():
        close(single.hyperparameters[key], derivative, rtol=1e-5)
    close(single.Z, double.Z, rtol=1e-5)
    gradients = [
        root_gradient(start.A, g.RA, R, P, 5 / NOISE)
        for g, R in ((double, q.R), (single, q.R.float()))
    ]
    close(gradients[1].double(), gradients[0], rtol=1e-5)


@pytest.mark.parametrize("name", ["matern32-ard", "rbf", "sum", "product"])
def test_collapsed_bound_is_below_the_likelihood_and_meets_it_where_Z_is_X(name):
    kernel = KERNELS[name]
    noise = np.full(N, NOISE)
    exact = reference.log_likelihood(kernel, noise, X.numpy(), Y.numpy(), H.numpy())
    assert at(kernel)[0].value < exact
    share = 1e-9
    everything = at(kernel, X, share=share)[0].value
    # Jitter j takes at most p n j / σ² from the bound, to first order.
    slack = 2 * P * N * share * float(kernel.diagonal(X).mean()) / NOISE
    assert exact - 10 * slack - 1e-6 * abs(exact) < everything <= exact + 1e-9 * abs(exact)


def test_more_inducing_points_never_lower_the_bound():
    kernel = Matern32([0.7, 1.1, 0.9], 1.3)
    values = [at(kernel, X[:m], share=1e-10)[0].value for m in (1, 5, 20, N)]
    assert np.all(np.diff(values) > 0)


@pytest.mark.parametrize("name", ["matern32-ard", "sum"])
def test_stochastic_bound_is_below_the_collapsed_one_and_meets_it_at_the_best_q(name):
    kernel = KERNELS[name]
    best, tiles = at(kernel)
    errors = Y - H @ best.trend.coefficients
    start = whitened(tiles, SHARE)
    batch = Batch(X, errors, N)
    for seed in range(5):
        q = Variational(tensor(M, P, seed=seed), tensor(M, M, seed=seed + 9).tril().T)
        assert stochastic_bound(start, batch, NOISE, q).value < best.value
    q = natural_step(Variational.prior(M, P), start.A, batch, NOISE, 1.0)
    found = stochastic_bound(start, batch, NOISE, q)
    assert found.value == pytest.approx(best.value, rel=1e-10)
    np.testing.assert_allclose(found.mu, 0.0, atol=1e-8)  # nothing is gained by moving q
    np.testing.assert_allclose(q.R.T @ q.R, best.R.T @ best.R, atol=1e-10)


def test_batches_are_unbiased():
    kernel = KERNELS["matern32-ard"]
    cross = CrossCovariance(kernel, Z)
    q = Variational(tensor(M, P, seed=3), tensor(M, M, seed=4).tril().T)

    def slope(rows):
        start = whitened(cross.over(X[rows]), SHARE)
        return stochastic_bound(start, Batch(X[rows], Y[rows], N), NOISE, q)

    whole = slope(slice(None))
    parts = [slope(slice(i, i + 15)) for i in range(0, N, 15)]
    assert np.mean([p.value for p in parts]) == pytest.approx(whole.value)
    close(sum(p.Z for p in parts) / len(parts), whole.Z)


def test_natural_steps_are_a_weighted_mean():
    kernel = KERNELS["rbf"]
    A = whitened(CrossCovariance(kernel, Z).over(X), SHARE).A
    batch, prior = Batch(X, Y, N), Variational.prior(M, P)
    q = natural_step(prior, A, batch, NOISE, 0.25)
    precision = torch.linalg.inv(q.R.T @ q.R)
    target = torch.eye(M, dtype=torch.float64) + A @ A.T / NOISE
    np.testing.assert_allclose(
        precision, 0.75 * torch.eye(M, dtype=torch.float64) + 0.25 * target, rtol=1e-8
    )
    np.testing.assert_allclose(precision @ q.mu, 0.25 * A @ Y / NOISE, rtol=1e-7)
