"""Hyperparameters and inducing points as one vector, on either scale."""

import numpy as np
import pytest
import torch

from megagp.approximate import InducingParameters, SoftplusParameters
from megagp.kernels import Hyperparameter, Matern32

FLOOR = 1e-4


def made(kind, lengthscale=(0.5, 30.0), outputscale=2.0, noise=0.02, learn=True):
    kernel = Matern32(list(lengthscale), outputscale)
    Z = torch.tensor([[1.0, -2.0], [0.5, 3.0], [4.0, 0.0]], dtype=torch.float64)
    return kind(kernel, Hyperparameter("noise_variance", noise), FLOOR, Z, learn)


def values(parameters):
    kernel = parameters.kernel
    parts = [kernel.lengthscale, kernel.outputscale[None], parameters.noise.value[None]]
    return torch.cat([*parts, parameters.Z.reshape(-1)]).detach().numpy()


@pytest.mark.parametrize("learn", [True, False])
def test_softplus_of_theta_is_the_value(learn):
    theta = made(SoftplusParameters, learn=learn).get()
    np.testing.assert_allclose(np.log1p(np.exp(theta[:4])), [0.5, 30.0, 2.0, 0.02], rtol=1e-12)
    np.testing.assert_array_equal(theta[4:], [1, -2, 0.5, 3, 4, 0] if learn else [])


@pytest.mark.parametrize("value", [1e-20, 1e-8, 1.0, 800.0])
def test_there_and_back(value):
    parameters = made(SoftplusParameters, noise=value)
    before = values(parameters)
    parameters.set(parameters.get())
    np.testing.assert_allclose(values(parameters), before, rtol=1e-9)


@pytest.mark.parametrize("kind", [InducingParameters, SoftplusParameters])
def test_gradients_against_differences(kind):
    parameters = made(kind)
    weights = np.random.default_rng(0).normal(size=10)

    def total(theta):
        parameters.set(theta)
        return float(weights @ values(parameters))

    theta = parameters.get()
    expected = [
        (total(theta + step) - total(theta - step)) / 2e-6 for step in 1e-6 * np.eye(len(theta))
    ]
    parameters.set(theta)
    by_value = {
        "lengthscale": torch.from_numpy(weights[:2]),
        "outputscale": torch.tensor(weights[2]),
        "noise_variance": torch.tensor(weights[3]),
    }
    found = parameters.gather(by_value, torch.from_numpy(weights[4:].reshape(3, 2)))
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("kind", [InducingParameters, SoftplusParameters])
def test_bounds_hold_after_clipping(kind):
    parameters = made(kind)
    low, high = (np.array(side) for side in zip(*parameters.bounds(), strict=True))
    theta = parameters.get()
    assert ((low < theta) & (theta < high)).all()
    np.testing.assert_allclose(parameters.clip(theta), theta, rtol=1e-12)
    far = theta.copy()
    far[:4] -= 1e4
    parameters.set(parameters.clip(far))
    np.testing.assert_allclose(values(parameters)[:4], [1e-3, 1e-3, 1e-4, FLOOR], rtol=1e-6)
