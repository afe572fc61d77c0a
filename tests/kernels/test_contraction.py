"""contract against autograd of Σ G * K, kernel by kernel."""

from __future__ import annotations

import pytest
import torch

from megagp import kernels
from megagp.kernels import Kernel, contract

ARD = [0.5, 1.3, 2.0]
KERNELS: dict[str, Kernel] = {
    "Matern12": kernels.Matern12(0.7, 1.5),
    "Matern32, ARD": kernels.Matern32(ARD, 0.4),
    "Matern52": kernels.Matern52(0.7, 1.5),
    "RBF, ARD": kernels.RBF(ARD, 2.0),
    "RationalQuadratic": kernels.RationalQuadratic(0.8, 1.2, alpha=0.6),
    "active_dims": kernels.Matern32([0.5, 0.9], active_dims=[0, 2]),
    "Periodic": kernels.Periodic(0.9, 1.1, period=2.0),
    "Linear": kernels.Linear(0.3),
    "Sum": kernels.Matern32(ARD) + kernels.RBF(0.4, 0.2),
    "Product": kernels.Matern52(ARD) * kernels.Linear(0.3),
}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_equals_autograd(kernel: Kernel) -> None:
    X, G = _problem()
    values = {name: v.detach().clone().requires_grad_() for name, v in kernel.values().items()}
    total = (G * kernel.bind(values).evaluate(X, X)).sum()
    expected = dict(zip(values, torch.autograd.grad(total, list(values.values())), strict=True))
    found = contract(kernel, X, G)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-9)


def test_duplicates_and_an_offset() -> None:
    X, G = _problem()
    X[5] = X[4]
    kernel = kernels.Matern32(ARD)
    near = contract(kernel, X, G)["lengthscale"]
    far = contract(kernel, X + 1e4, G)["lengthscale"]
    torch.testing.assert_close(far, near, rtol=1e-6, atol=1e-8)


def test_frozen_ones_are_left_out() -> None:
    X, G = _problem()
    assert contract(kernels.Matern32(0.7).freeze("lengthscale"), X, G).keys() == {"outputscale"}
    assert contract(kernels.Matern32(0.7).freeze(), X, G) == {}


def _problem() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    G = torch.randn(40, 40, generator=generator, dtype=torch.float64)
    return X, G + G.T
