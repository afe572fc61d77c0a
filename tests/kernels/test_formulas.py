"""Every kernel against the formula in its own docstring and against the reference."""

import numpy as np
import pytest
import torch

import reference
from megagp.kernels import (
    RBF,
    Constant,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
)

KERNELS = [RBF, Constant, Linear, Matern12, Matern32, Matern52, Periodic, RationalQuadratic]
NAMES = {name: getattr(np, name) for name in ("exp", "pi", "sin", "sqrt", "sum")}


def documented(kernel, x, z):
    """Evaluate the lines `k(x, z) = ...` and `r = ...` of the docstring."""
    lines = [line.strip() for line in type(kernel).__doc__.splitlines()]
    names = {**NAMES, "norm": np.linalg.norm, "x": x, "z": z, **reference.values(kernel)}
    for start, name in (("r = ", "r"), ("k(x, z) = ", "k")):
        for line in lines:
            if line.startswith(start):
                names[name] = eval(line.removeprefix(start), {}, names)
    return names["k"]


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("ard", [False, True])
def test_evaluate_is_what_the_docstring_says(kind, ard):
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(5, 3)), rng.normal(size=(4, 3))
    declared = kind.declared()
    chosen = {name: rng.uniform(0.5, 2.0) for name in declared}
    if ard and "lengthscale" in declared:
        chosen["lengthscale"] = rng.uniform(0.5, 2.0, 3)
    kernel = kind(**chosen)
    K = kernel.evaluate(torch.as_tensor(X), torch.as_tensor(Z)).numpy()
    for i, x in enumerate(X):
        for j, z in enumerate(Z):
            assert K[i, j] == pytest.approx(documented(kernel, x, z), rel=1e-13)


@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("case", reference.kernel_cases(1))
def test_evaluate_and_diagonal_match_the_reference(case, d):
    kernel = reference.kernel_cases(d)[case]
    rng = np.random.default_rng(1)
    X, Z = rng.normal(size=(7, d)), rng.normal(size=(6, d))
    X[1] = Z[0] = X[0]
    K = kernel.evaluate(torch.as_tensor(X), torch.as_tensor(Z)).numpy()
    np.testing.assert_allclose(K, reference.matrix(kernel, X, Z), rtol=1e-12, atol=1e-14)
    diagonal = kernel.diagonal(torch.as_tensor(X)).numpy()
    expected = reference.matrix(kernel, X, X).diagonal()
    np.testing.assert_allclose(diagonal, expected, rtol=1e-12)


@pytest.mark.parametrize("case", reference.kernel_cases(1))
def test_matrices_are_positive_semidefinite(case):
    X = torch.randn(60, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    K = reference.kernel_cases(2)[case].evaluate(X, X)
    assert torch.equal(K, K.mT) or torch.allclose(K, K.mT, rtol=1e-14)
    eigenvalues = torch.linalg.eigvalsh(K)
    assert eigenvalues[0] > -1e-12 * eigenvalues[-1]


@pytest.mark.parametrize("case", reference.kernel_cases(1))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_evaluate_keeps_dtype_and_device_of_the_points(case, dtype):
    kernel = reference.kernel_cases(2)[case]
    X = torch.ones(3, 2, dtype=dtype)
    assert kernel.evaluate(X, X[:2]).dtype == dtype
    assert kernel.diagonal(X).dtype == dtype
    X = torch.empty(3, 2, dtype=dtype, device="meta")
    K = kernel.on("meta", dtype).evaluate(X, X[:2])
    assert K.shape == (3, 2)
    assert K.device.type == "meta"


@pytest.mark.parametrize("case", reference.kernel_cases(1))
def test_gradients_are_finite_where_points_coincide(case):
    kernel = reference.kernel_cases(2)[case].requires_grad_()
    X = torch.ones(4, 2, dtype=torch.float64, requires_grad=True)
    Z = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    kernel.evaluate(X, Z).sum().backward()
    for leaf in [*kernel.parameters(), X, Z]:
        assert leaf.grad is None or leaf.grad.isfinite().all()


@pytest.mark.parametrize("case", reference.kernel_cases(1))
def test_gradients_match_finite_differences(case):
    kernel = reference.kernel_cases(2)[case].requires_grad_()
    generator = torch.Generator().manual_seed(3)
    X = torch.randn(4, 2, dtype=torch.float64, generator=generator)

    def entries(*raws):
        values = {name: raw.exp() for name, raw in zip(kernel.values(), raws, strict=True)}
        return kernel.bind(values).evaluate(X, X + 1)

    raws = [h.raw for h in kernel.hyperparameters().values()]
    assert torch.autograd.gradcheck(entries, raws)


def test_rational_quadratic_tends_to_rbf():
    X = torch.linspace(-3, 3, 20, dtype=torch.float64)[:, None]
    near = RationalQuadratic(0.8, 1.2, alpha=1e12).evaluate(X, X)
    torch.testing.assert_close(near, RBF(0.8, 1.2).evaluate(X, X), rtol=1e-9, atol=0.0)


def test_periodic_repeats():
    X = torch.linspace(0, 1, 5, dtype=torch.float64)[:, None]
    kernel = Periodic(0.8, period=0.75)
    torch.testing.assert_close(kernel.evaluate(X, X + 2.25), kernel.evaluate(X, X))


def test_linear_with_shared_lengthscale_is_an_outputscale():
    X = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    K = Linear(2.0, 1.0).evaluate(X, X)
    torch.testing.assert_close(K, Linear(1.0, 0.25).evaluate(X, X))
