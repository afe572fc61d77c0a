"""Weights and variances given predecessors: native and torch, against the formula in NumPy."""

import numpy as np
import pytest
import torch

import reference
from megagp import KernelOperator
from megagp.covariance import Covariance
from megagp.engines.native import instruction_sets, vecchia_weights
from megagp.kernels import RBF, Constant, Linear, Matern12, Matern32, Matern52, RationalQuadratic
from megagp.preconditioners.vecchia import LEAST, predict_rows, whiten

KERNELS = {
    "Matern12": (Matern12(0.8, 1.5), 2),
    "Matern32, ARD": (Matern32([0.3, 2.0, 1.0], 0.7), 3),
    "RBF": (RBF(1.5), 1),
    "rational quadratic": (RationalQuadratic(0.7, alpha=0.6), 2),
    "sum": (Matern52(0.5) + Linear(0.3) + Constant(0.2) * Matern32(2.0), 2),
    "many dimensions": (Matern32(6.0), 150),
}


def problem(kernel, d, n=90, k=70, m=7, dtype=torch.float64, offset=0.0):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, d)) + offset
    noise = torch.from_numpy(rng.uniform(0.1, 0.2, n))
    covariance = Covariance(KernelOperator(X, kernel), noise)
    L = torch.from_numpy(0.1 * rng.normal(size=(n, k)) / np.sqrt(k)).to(dtype)
    nearest = np.full((n, m), -1)
    for i in range(1, n):
        before = rng.permutation(i)[:m]
        nearest[i, rng.permutation(m)[: len(before)]] = before
    return covariance, L, nearest


def plain(covariance, L, nearest):
    """w, v and U L."""
    X, L = covariance.operator.X.numpy(), L.double().numpy()
    R = reference.matrix(covariance.operator.kernel, X, X) + np.diag(covariance.noise.numpy())
    R = R - L @ L.T
    w, v = np.zeros(nearest.shape), np.zeros(len(X))
    for i, row in enumerate(nearest):
        N = row[row >= 0]
        weights = np.linalg.solve(R[np.ix_(N, N)], R[N, i])
        w[i, row >= 0], v[i] = weights, R[i, i] - R[i, N] @ weights
    v = np.maximum(v, LEAST * covariance.noise.numpy())
    U = np.eye(len(X))
    for i, row in enumerate(nearest):
        U[i, row[row >= 0]] = -w[i, row >= 0]
    return w, v, U @ L / np.sqrt(v)[:, None]


def everything(covariance, L, nearest, **how):
    """What `whiten` or the core finds for all points, L as it was."""
    B = L.clone()
    points = np.arange(len(L))
    if "instruction_set" in how:
        operator = covariance.operator
        arguments = operator.kernel, operator.X, covariance.noise, B, nearest, points, LEAST
        return *vecchia_weights(*arguments, **how), B
    return *whiten(covariance, B, nearest, points), B


def check(found, expected):
    for F, E, atol in zip(found, expected, (1e-9, 1e-10, 1e-8), strict=True):
        np.testing.assert_allclose(F, E, atol=atol if F.dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_native_rows_are_those_of_the_formula(instruction_set, name, dtype):
    covariance, L, nearest = problem(*KERNELS[name], dtype=dtype, offset=3.0)
    found = everything(covariance, L, nearest, instruction_set=instruction_set)
    check(found, plain(covariance, L, nearest))


@pytest.mark.parametrize("k", [0, 1, 3, 8, 13, 64, 200])
@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_any_rank(instruction_set, k):
    covariance, L, nearest = problem(Matern32(0.8), 2, k=max(k, 1))
    L = L[:, :k].contiguous()
    found = everything(covariance, L, nearest, instruction_set=instruction_set)
    check(found, plain(covariance, L, nearest))


@pytest.mark.parametrize("name", KERNELS)
def test_torch_rows_are_those_of_the_formula(name):
    covariance, L, nearest = problem(*KERNELS[name])
    w, v = predict_rows(covariance, L, torch.arange(len(L)), torch.from_numpy(nearest))
    expected_w, expected_v, _ = plain(covariance, L, nearest)
    np.testing.assert_allclose(w, expected_w, atol=1e-9)
    np.testing.assert_allclose(v, expected_v, atol=1e-10)


@pytest.mark.parametrize("m", [0, 1, 3, 8, 15, 31, 40])
def test_any_number_of_predecessors(m):
    covariance, L, nearest = problem(Matern32(0.8), 2, m=m)
    check(everything(covariance, L, nearest), plain(covariance, L, nearest))


# More points than are whitened at once (native: 2,048; torch: a few).
@pytest.mark.parametrize(("n", "m", "columns"), [(5000, 3, 3), (90, 7, 600)])
def test_some_of_the_points_in_any_order_that_has_predecessors_first(n, m, columns):
    covariance, L, nearest = problem(Matern32(0.8), 2, n=n, k=5, m=m)
    nearest = np.pad(nearest, [(0, 0), (0, columns - m)], constant_values=-1)
    order = np.random.default_rng(0).permutation(n)  # of the points, which are numbered anew
    shuffled = np.full_like(nearest, -1)
    shuffled[order] = np.where(nearest >= 0, order[nearest], -1)
    X = np.empty((n, 2))
    X[order] = covariance.operator.X.numpy()
    moved = torch.empty_like(L)
    moved[torch.from_numpy(order)] = L
    other = Covariance(KernelOperator(X, Matern32(0.8)), torch.full((n,), 0.15, dtype=L.dtype))
    points = order[n // 3 :]
    B = moved.clone()
    w, v = whiten(other, B, shuffled, points)
    for row in np.random.default_rng(1).permutation(len(points))[:60]:
        i, N = points[row], shuffled[points[row]]
        N = N[N >= 0]
        S = np.append(N, i)
        R = reference.matrix(Matern32(0.8), X[S], X[S]) + 0.15 * np.eye(len(S))
        R -= moved.numpy()[S] @ moved.numpy()[S].T
        weights = np.linalg.solve(R[:-1, :-1], R[:-1, -1])
        left = R[-1, -1] - R[-1, :-1] @ weights
        np.testing.assert_allclose(w[row][shuffled[i] >= 0], weights, atol=1e-9)
        np.testing.assert_allclose(v[row], left, atol=1e-10)
        own = (moved.numpy()[i] - weights @ moved.numpy()[N]) / np.sqrt(left)
        np.testing.assert_allclose(B[i], own, atol=1e-9)
    others = torch.from_numpy(order[: n // 3])
    assert torch.equal(B[others], moved[others])


def test_same_bits_for_any_number_of_threads():
    covariance, L, nearest = problem(Matern32(0.8), 2, n=300)
    found, threads = [], torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            found.append(torch.column_stack(everything(covariance, L, nearest)))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


def test_points_whose_predecessors_are_spoilt_stay_alone():
    covariance, L, nearest = problem(Matern32(0.8), 2)
    L = L.clone()
    L[3] = 2.0  # more variance than there is: R is not positive definite
    w, v, B = everything(covariance, L, nearest)
    spoilt = (nearest == 3).any(axis=1)
    assert 0 < spoilt.sum() < len(L)
    assert not w[spoilt].any()
    total = 1.0 + covariance.noise - L.square().sum(1)
    np.testing.assert_allclose(v[spoilt], total[spoilt], rtol=1e-12)
    np.testing.assert_allclose(v[3], LEAST * covariance.noise[3], rtol=1e-12)
    alone = L[spoilt] / v[spoilt, None].sqrt()
    np.testing.assert_allclose(B[spoilt], alone, rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nearest": np.full((90, 7), 90)}, "nearest"),
        ({"nearest": np.full((90, 7), -2)}, "nearest"),
        ({"nearest": np.full((90, 513), -1)}, "nearest"),
        ({"points": np.arange(91)}, "points"),
        ({"points": np.zeros(2, dtype=int)}, "points"),
        ({"points": np.arange(90)[::-1]}, "before"),
        ({"nearest": np.full((80, 7), -1)}, "nearest: expected n x m"),
        ({"L": torch.zeros(80, 5, dtype=torch.float64)}, "L: expected n x k"),
    ],
)
def test_bad_arguments_are_named(change, message):
    covariance, L, nearest = problem(Matern32(0.8), 2)
    arguments = {"L": L, "nearest": nearest, "points": np.arange(90)} | change
    with pytest.raises(ValueError, match=message):
        vecchia_weights(
            covariance.operator.kernel,
            covariance.operator.X,
            covariance.noise,
            least=LEAST,
            **arguments,
        )
