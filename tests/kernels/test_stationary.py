"""What engines rely on: a stationary kernel is outputscale * radial(distance of features)."""

import pytest
import torch

import reference
from megagp.kernels import Stationary

CASES = [case for case, k in reference.kernel_cases(1).items() if isinstance(k, Stationary)]
X = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("case", CASES)
def test_features_and_radial_make_the_kernel(case):
    kernel = reference.kernel_cases(3)[case]
    F = kernel.features(X)
    r = torch.linalg.vector_norm(F[:, None] - F[None], dim=2)
    torch.testing.assert_close(kernel.outputscale * kernel.radial(r), kernel.evaluate(X, X))


@pytest.mark.parametrize("case", CASES)
def test_radial_falls_from_one(case):
    kernel = reference.kernel_cases(3)[case]
    k = kernel.radial(torch.linspace(0, 5, 50, dtype=torch.float64))
    assert k[0] == 1
    assert (k.diff() < 0).all()
    assert (k > 0).all()


@pytest.mark.parametrize("case", CASES)
def test_shifting_both_sets_changes_nothing(case):
    kernel = reference.kernel_cases(3)[case]
    assert kernel.stationary
    torch.testing.assert_close(kernel.evaluate(X + 2, X + 2), kernel.evaluate(X, X))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_points_give_numbers(case, dtype):
    kernel = reference.kernel_cases(1)[case].requires_grad_()
    far = torch.tensor([[0.0], [1e10], [1e30]], dtype=dtype, requires_grad=True)
    K = kernel.evaluate(far, far)
    K.sum().backward()
    assert (K >= 0).all()
    assert (kernel.outputscale * 1.000001 >= K).all()
    for leaf in [*kernel.parameters(), far]:
        assert leaf.grad.isfinite().all()
