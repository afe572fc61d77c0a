"""Blocks of K in stacks against one block at a time."""

import numpy as np
import pytest
import torch

import reference
from megagp import kernels
from megagp.kernels import Kernel, Positive, evaluate_batch


class Cauchy(Kernel):
    lengthscale = Positive()

    def evaluate(self, X, Z):
        return 1 / (1 + torch.cdist(X, Z).square() / self.lengthscale**2)


KERNELS = {
    "Matern32": kernels.Matern32([0.5, 1.0, 2.0], 1.5),
    "active_dims": kernels.RBF(0.7, active_dims=[2, 0]),
    "Constant": kernels.Constant(0.3),
    "Linear": kernels.Linear(0.8),
    "Periodic": kernels.Periodic(0.9, period=1.5),
    "sum and product": kernels.Matern12(0.4) + kernels.Matern52(2.0) * kernels.Linear(0.5),
}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_equals_the_reference(kernel):
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(4, 5, 3)), rng.normal(size=(4, 2, 3))
    found = evaluate_batch(kernel, torch.from_numpy(X), torch.from_numpy(Z)).detach()
    for block, x, z in zip(found, X, Z, strict=True):
        np.testing.assert_allclose(block, reference.matrix(kernel, x, z), rtol=1e-12, atol=1e-12)


def test_a_kernel_that_knows_matrices_only():
    X = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = Cauchy(lengthscale=0.5)
    found = evaluate_batch(kernel, X, X)
    for block, x in zip(found, X, strict=True):
        torch.testing.assert_close(block, kernel.evaluate(x, x))
