"""Weights and variances given predecessors: native and torch, against the formula in NumPy."""

import numpy as np
import pytest
import torch

import reference
from megagp import KernelOperator
from megagp.covariance import Covariance
from megagp.engines.native import instruction_sets, vecchia_weights
from megagp.kernels import RBF, Constant, Linear, Matern12, Matern32, Matern52, RationalQuadratic
from megagp.preconditioners.vecchia import LEAST, predict, predict_rows

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
    X, L = covariance.operator.X.numpy(), L.double().numpy()
    R = reference.matrix(covariance.operator.kernel, X, X) + np.diag(covariance.noise.numpy())
    R = R - L @ L.T
    w, v = np.zeros(nearest.shape), np.zeros(len(X))
    for i, row in enumerate(nearest):
        N = row[row >= 0]
        weights = np.linalg.solve(R[np.ix_(N, N)], R[N, i])
        w[i, row >= 0], v[i] = weights, R[i, i] - R[i, N] @ weights
    return w, np.maximum(v, LEAST * covariance.noise.numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_native_rows_are_those_of_the_formula(instruction_set, name, dtype):
    covariance, L, nearest = problem(*KERNELS[name], dtype=dtype, offset=3.0)
    operator = covariance.operator
    w, v = vecchia_weights(
        operator.kernel, operator.X, covariance.noise, L, nearest, 0, LEAST, instruction_set
    )
    expected_w, expected_v = plain(covariance, L, nearest)
    np.testing.assert_allclose(w, expected_w, atol=1e-9)
    np.testing.assert_allclose(v, expected_v, atol=1e-10)


@pytest.mark.parametrize("name", KERNELS)
def test_torch_rows_are_those_of_the_formula(name):
    covariance, L, nearest = problem(*KERNELS[name])
    w, v = predict_rows(covariance, L, torch.arange(len(L)), torch.from_numpy(nearest))
    expected_w, expected_v = plain(covariance, L, nearest)
    np.testing.assert_allclose(w, expected_w, atol=1e-9)
    np.testing.assert_allclose(v, expected_v, atol=1e-10)


@pytest.mark.parametrize("m", [0, 1, 3, 8, 15, 31, 40])
def test_any_number_of_predecessors(m):
    covariance, L, nearest = problem(Matern32(0.8), 2, m=m)
    w, v = predict(covariance, L, nearest, slice(0, len(L)))
    expected_w, expected_v = plain(covariance, L, nearest)
    np.testing.assert_allclose(w, expected_w, atol=1e-9)
    np.testing.assert_allclose(v, expected_v, atol=1e-10)


@pytest.mark.parametrize("m", [7, 600])
def test_some_of_the_rows(m):
    covariance, L, nearest = problem(Matern32(0.8), 2)
    nearest = np.pad(nearest, [(0, 0), (0, m - 7)], constant_values=-1)
    own = slice(20, 47)
    expected_w, expected_v = plain(covariance, L, nearest)
    w, v = predict(covariance, L, nearest, own)
    np.testing.assert_allclose(w, expected_w[own], atol=1e-9)
    np.testing.assert_allclose(v, expected_v[own], atol=1e-10)


def test_same_bits_for_any_number_of_threads():
    covariance, L, nearest = problem(Matern32(0.8), 2, n=300)
    found, threads = [], torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            found.append(torch.column_stack(predict(covariance, L, nearest, slice(0, len(L)))))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


def test_points_whose_predecessors_are_spoilt_stay_alone():
    covariance, L, nearest = problem(Matern32(0.8), 2)
    L = L.clone()
    L[3] = 2.0  # more variance than there is: R is not positive definite
    w, v = predict(covariance, L, nearest, slice(0, len(L)))
    spoilt = (nearest == 3).any(axis=1)
    assert 0 < spoilt.sum() < len(L)
    assert not w[spoilt].any()
    total = 1.0 + covariance.noise - L.square().sum(1)
    np.testing.assert_allclose(v[spoilt], total[spoilt], rtol=1e-12)
    np.testing.assert_allclose(v[3], LEAST * covariance.noise[3], rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nearest": np.full((90, 7), 90)}, "nearest"),
        ({"nearest": np.full((90, 7), -2)}, "nearest"),
        ({"nearest": np.full((90, 513), -1)}, "nearest"),
        ({"first": 1}, "first"),
        ({"L": torch.zeros(80, 5, dtype=torch.float64)}, "L: expected n x k"),
    ],
)
def test_bad_arguments_are_named(change, message):
    covariance, L, nearest = problem(Matern32(0.8), 2)
    arguments = {"L": L, "nearest": nearest, "first": 0} | change
    with pytest.raises(ValueError, match=message):
        vecchia_weights(
            covariance.operator.kernel,
            covariance.operator.X,
            covariance.noise,
            least=LEAST,
            **arguments,
        )
