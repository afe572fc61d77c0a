"""θ: which hyperparameters are in it, where, and within which bounds."""

import numpy as np
import pytest
import torch

from megagp.kernels import RBF, Hyperparameter, Matern32, Periodic
from megagp.training.parameters import BOUNDS, LARGEST_RATIO, OTHERWISE, Parameters


def parameters(kernel, noise=0.1, floor=1e-4):
    noise = Hyperparameter("noise_variance", noise)
    return Parameters(kernel, noise, floor), noise


def test_logarithms_in_order():
    kernel = Matern32([0.5, 2.0], 3.0)
    found, _ = parameters(kernel)
    np.testing.assert_allclose(found.get(), np.log([0.5, 2.0, 3.0, 0.1]))


def test_set_and_get():
    kernel = Matern32([0.5, 2.0], 3.0) + Periodic(0.7, period=2.5)
    found, noise = parameters(kernel)
    theta = np.random.default_rng(0).normal(size=len(found.get()))
    before = theta.copy()
    found.set(theta)
    np.testing.assert_array_equal(found.get(), theta)
    np.testing.assert_array_equal(theta, before)
    np.testing.assert_allclose(kernel["0.lengthscale"], np.exp(theta[:2]))
    assert float(noise.value) == pytest.approx(np.exp(theta[-1]))
    # A vector of its own: what is changed there changes nothing here.
    found.get()[:] = 99
    np.testing.assert_array_equal(found.get(), theta)
    theta[:] = 5
    np.testing.assert_array_equal(found.get(), before)


def test_frozen_ones_are_left_alone():
    kernel = Matern32([0.5, 2.0], 3.0).freeze("lengthscale")
    found, noise = parameters(kernel)
    np.testing.assert_allclose(found.get(), np.log([3.0, 0.1]))
    found.set(np.zeros(2))
    np.testing.assert_allclose(kernel.lengthscale, [0.5, 2.0])
    gathered = found.gather({"outputscale": torch.tensor(2.0), "noise_variance": torch.tensor(3.0)})
    np.testing.assert_array_equal(gathered, [2.0, 3.0])
    kernel.freeze()
    noise.frozen = True
    nothing = Parameters(kernel, noise, 1e-4)
    assert nothing.get().shape == nothing.clip(np.zeros(0)).shape == (0,)
    assert nothing.gather({"noise_variance": torch.tensor(3.0)}).shape == (0,)
    nothing.set(np.zeros(0))
    assert nothing.own == []


def test_tied_ones_have_one_place():
    shared = Matern32([0.5, 2.0])
    kernel = shared + RBF() * shared
    found, _ = parameters(kernel)
    theta = found.get()
    assert len(theta) == 3 + 2 + 1
    names = kernel.hyperparameters()
    gradient = {name: torch.ones_like(h.raw) for name, h in names.items()}
    gradient["noise_variance"] = torch.tensor(7.0, dtype=torch.float64)
    np.testing.assert_array_equal(found.gather(gradient), [2, 2, 2, 1, 1, 7])
    found.set(theta + 1)
    np.testing.assert_allclose(kernel["0.lengthscale"], kernel["1.1.lengthscale"])
    np.testing.assert_allclose(shared.lengthscale, np.exp(1) * np.array([0.5, 2.0]))


def test_bounds():
    kernel = Periodic(1.0, 1.0, 1.0)
    found, _ = parameters(kernel, floor=0.02)
    names = list(kernel.hyperparameters())
    low, high = (np.exp(found.clip(np.full(4, x))) for x in (-100.0, 100.0))
    for i, name in enumerate(names):
        assert (low[i], high[i]) == pytest.approx(BOUNDS.get(name, OTHERWISE))
    assert low[3] == pytest.approx(0.02)
    inside = np.zeros(4)
    np.testing.assert_array_equal(found.clip(inside), inside)


def test_steps_within_the_box_are_within_the_bounds():
    found, _ = parameters(Matern32([1.0, 2.0]))
    theta = found.clip(np.array([0.0, found.lower[1], 6.0, 5.0 - np.log(LARGEST_RATIO)]))
    assert theta[2] == pytest.approx(5.0)  # at its largest ratio to the noise
    T, lower, upper = found.box(theta)
    assert lower[1] == upper[2] == 0.0
    rng = np.random.default_rng(0)
    for _ in range(100):
        inside = theta + T @ rng.uniform(np.maximum(lower, -1.0), np.minimum(upper, 1.0))
        np.testing.assert_allclose(found.clip(inside), inside, atol=1e-12)
    beyond = theta + T @ np.array([0.0, 0.0, 0.1, 0.0])
    assert found.clip(beyond)[2] == pytest.approx(theta[2])


def test_the_outputscale_at_its_largest_ratio_goes_with_the_noise():
    found, _ = parameters(Matern32(1.0))
    theta = np.array([0.0, 5.0, 5.0 - np.log(LARGEST_RATIO)])
    T, lower, upper = found.box(theta)
    np.testing.assert_array_equal(T, [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]])
    assert (lower[1], upper[1]) == (-np.inf, 0.0)
    # One that its own bound holds before the noise does stays apart from it.
    theta = np.array([0.0, 5.0, 1.0])
    T, lower, upper = found.box(theta)
    np.testing.assert_array_equal(T, np.eye(3))
    assert np.exp(theta + upper)[1] == pytest.approx(BOUNDS["outputscale"][1])
