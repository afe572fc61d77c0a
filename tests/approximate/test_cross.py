"""K(X, Z) in tiles, and derivatives with dense weights, against dense float64."""

import numpy as np
import pytest
import torch

import reference
from megagp.approximate import cross as tiles
from megagp.approximate.cross import CrossCovariance
from megagp.kernels import Matern12, Matern32

D = 3


def points(n, seed):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((n, D)))


@pytest.mark.parametrize("name", reference.kernel_cases(D))
@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 3), (33, 4)])
def test_block(name, n, m, monkeypatch):
    monkeypatch.setattr(tiles, "STRIP", 8 * m * 32)  # n = 33 is one more than a strip
    kernel, X, Z = reference.kernel_cases(D)[name], points(n, 0), points(m, 1)
    expected = reference.matrix(kernel, X.numpy(), Z.numpy())
    found = CrossCovariance(kernel, Z)
    np.testing.assert_allclose(found.block(X), expected, atol=1e-7)
    square = reference.matrix(kernel, Z.numpy(), Z.numpy())
    np.testing.assert_allclose(found.square(), square, atol=1e-7)


@pytest.mark.parametrize("name", reference.kernel_cases(D))
def test_derivative(name):
    kernel, X, Z = reference.kernel_cases(D)[name], points(11, 0), points(4, 1)
    G = np.random.default_rng(2).standard_normal((11, 4))
    found = CrossCovariance(kernel, Z).over(X).derivative(lambda rows, K: torch.from_numpy(G)[rows])
    eye = np.eye(4)
    by_name = reference.hyperparameter_gradient(kernel, X.numpy(), Z.numpy(), G, eye)
    for key, expected in by_name.items():
        np.testing.assert_allclose(found.hyperparameters[key], expected, rtol=1e-5, atol=1e-7)
    by_Z = reference.input_gradient(
        lambda z: reference.objective(kernel, X.numpy(), z, G, eye), Z.numpy()
    )
    np.testing.assert_allclose(found.Z, by_Z, rtol=1e-5, atol=1e-7)


def test_symmetric_derivative_moves_both_sides():
    kernel, Z = Matern32([0.5, 1.0, 2.0], 1.3), points(5, 0)
    A = np.random.default_rng(1).standard_normal((5, 5))
    D_ = torch.from_numpy(A + A.T)
    found = CrossCovariance(kernel, Z).square_derivative(D_).Z
    expected = reference.input_gradient(
        lambda z: float(np.sum(D_.numpy() * reference.matrix(kernel, z, z))), Z.numpy()
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_frozen_hyperparameters_have_no_derivative():
    kernel = Matern32(0.7, 1.3).freeze("lengthscale") + Matern12(0.9)
    X, Z = points(6, 0), points(3, 1)
    found = CrossCovariance(kernel, Z).over(X).derivative(lambda rows, K: torch.ones_like(K))
    assert list(found.hyperparameters) == ["0.outputscale", "1.lengthscale", "1.outputscale"]


def test_points_that_coincide_have_finite_derivatives():
    X = points(6, 0)
    for kernel in (Matern12(0.7), Matern32(0.7)):
        found = (
            CrossCovariance(kernel, X[:3].clone())
            .over(X)
            .derivative(lambda rows, K: torch.ones_like(K))
        )
        assert found.Z.isfinite().all()
        assert found.hyperparameters["lengthscale"].isfinite()
