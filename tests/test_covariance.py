"""K̂ V = K V + noise * V, in both precisions."""

import numpy as np
import pytest
import torch

import reference
from megagp import KernelOperator
from megagp.covariance import Covariance
from megagp.kernels import Matern32


@pytest.mark.parametrize(("n", "t"), [(1, 1), (70, 3)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_product(n, t, dtype):
    rng = np.random.default_rng(0)
    X, V, noise = rng.normal(size=(n, 2)), rng.normal(size=(n, t)), rng.uniform(0.1, 2, n)
    covariance = Covariance(KernelOperator(X, Matern32(), dtype=dtype), torch.from_numpy(noise))
    expected = (reference.matrix(Matern32(), X, X) + np.diag(noise)) @ V
    tolerance = 1e-12 if dtype == "float64" else 1e-5
    given = torch.from_numpy(V.copy())
    np.testing.assert_allclose(covariance.matmul(given), expected, atol=tolerance * n)
    np.testing.assert_array_equal(given, V)
    precise = covariance.precise()
    assert precise.operator.dtype == torch.float64
    np.testing.assert_allclose(precise.matmul(given), expected, atol=1e-12 * n)
    assert len(covariance) == n


def test_no_graph_and_the_present_hyperparameters():
    kernel = Matern32().requires_grad_()
    operator = KernelOperator(np.ones((3, 1)), kernel)
    covariance = Covariance(operator, torch.ones(3, dtype=torch.float64))
    precise = covariance.precise()
    V = torch.ones(3, 1, dtype=torch.float64)
    assert not covariance.matmul(V).requires_grad
    kernel.requires_grad_(False).outputscale = 5.0
    for one in (covariance, precise):
        np.testing.assert_allclose(one.matmul(V), np.full((3, 1), 16.0), rtol=1e-6)
