"""Inputs whose lengthscales ran off: what hearing them promises, and that searches come back."""

import numpy as np
import pytest
import torch

import reference
from megagp.kernels import Hyperparameter, Matern32, Periodic
from megagp.mean import basis
from megagp.training import Objective, Solving
from megagp.training.mute import SHARE, heard, mute
from megagp.training.optimisers import lbfgs
from megagp.training.parameters import Parameters

COLUMNS = np.array([1.0, 10.0, 0.1])  # standard deviations of the inputs


def objective(lengthscale, n=250, whole=1.0, dense_below=1000):
    """y depends on the first two inputs alone."""
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(n, 3))
    y = np.sin(2 * Z[:, 0]) + whole * Z[:, 1] ** 2 + 0.1 * rng.normal(size=n)
    X, Y = torch.from_numpy(Z * COLUMNS), torch.from_numpy(y[:, None] / y.std())
    kernel, noise = Matern32(lengthscale * COLUMNS), Hyperparameter("noise_variance", 0.1)
    return Objective(
        X,
        Y,
        basis(X, "constant"),
        kernel,
        noise,
        torch.ones(n, dtype=torch.float64),
        Parameters(kernel, noise, 1e-4),
        Solving(dense_below=dense_below),
        0,
    )


def reference_loss(f, theta):
    f.parameters.set(theta)
    arrays = [A.numpy() for A in (f.operator.X, f.Y, f.H)]
    noise = float(f.noise.value) * np.ones(len(f.Y))
    return -reference.log_likelihood(f.operator.kernel, noise, *arrays) / len(f.Y)


def test_what_is_promised_is_the_derivative_by_s():
    f = objective(np.array([1.0, 900.0, 1.0]))
    theta = f.parameters.get()
    trial, promised = heard(f.parameters, theta, f(theta)[1], f.spread)
    s = 1 / 900.0**2
    least = SHARE / 3 * (2 + s)
    moved = np.zeros(len(theta))
    moved[1] = 0.5 * np.log(s / least)
    np.testing.assert_allclose(trial - theta, moved, rtol=2e-3, atol=1e-12)
    # A thousandth of the way by s, times a thousand.
    near = theta + np.eye(len(theta))[1] * 0.5 * np.log(s / (s + 1e-3 * (least - s)))
    slope = (reference_loss(f, theta) - reference_loss(f, near)) * 1e3
    assert promised == pytest.approx(slope, rel=0.02)
    assert promised > 0.01


def test_inputs_that_say_nothing_promise_next_to_nothing():
    f = objective(np.array([0.7, 900.0, 900.0]), whole=0.0)
    theta = f.parameters.get()
    gradient = f(theta)[1]
    trial, promised = heard(f.parameters, theta, gradient, f.spread)
    outward = gradient[1:3] <= 0
    assert outward.any()
    np.testing.assert_array_equal(trial[1:3][outward], theta[1:3][outward])
    assert promised < 1e-3


def test_only_those_are_heard_that_promise_most():
    parameters = Parameters(
        Matern32([1.0, *[900.0] * 3]), Hyperparameter("noise_variance", 0.1), 1e-4
    )
    theta, gradient = parameters.get(), np.zeros(6)
    gradient[1:4] = [1e-3, 0.9e-4, 5e-4]
    trial, promised = heard(parameters, theta, gradient, np.ones(4))
    assert list(np.flatnonzero(trial != theta)) == [1, 3]
    alone = [
        heard(parameters, theta, gradient * (np.arange(6) == i), np.ones(4))[1] for i in (1, 3)
    ]
    assert promised == pytest.approx(sum(alone))


def test_nothing_to_do_where_all_are_heard_or_share_one_lengthscale():
    f = objective(np.array([0.7, 2.0, 3.0]))
    theta = f.parameters.get()
    trial, promised = heard(f.parameters, theta, np.ones(len(theta)), f.spread)
    np.testing.assert_array_equal(trial, theta)
    assert promised == 0
    shared = Parameters(Matern32(5000.0), f.noise, 1e-4)
    assert shared.per_input(3) == []


def test_a_constant_column_is_left_alone():
    f = objective(np.array([1.0, 900.0, 1.0]))
    theta = f.parameters.get()
    spread = f.spread * np.array([1.0, 0.0, 1.0])
    trial, promised = heard(f.parameters, theta, np.ones(len(theta)), spread)
    np.testing.assert_array_equal(trial, theta)
    assert promised == 0


def test_inputs_are_those_of_their_part():
    """By column, in whatever order; kernels that are not of x / ℓ have none."""
    first, second = Matern32([5000.0, 1.0], active_dims=[2, 0]), Periodic([9000.0, 1.0, 1.0])
    parameters = Parameters(first + second, Hyperparameter("noise_variance", 0.1), 1e-4)
    assert parameters.per_input(3) == [(slice(0, 2), [2, 0])]
    theta, spread = parameters.get(), np.array([1.0, 7.0, 100.0])
    found = mute(parameters, theta, spread)
    s = 100 / 5000.0**2
    np.testing.assert_allclose(found[0], 0.5 * np.log(SHARE / 2 * (1 + s) / s))
    np.testing.assert_array_equal(found[1:], 0)


def test_bounds_promise_nothing():
    """An input in so small a unit that its share asks for ℓ below the least there is."""
    parameters = Parameters(Matern32([1e-3, 1.0]), Hyperparameter("noise_variance", 0.1), 1e-4)
    theta = parameters.get()
    trial, promised = heard(parameters, theta, np.ones(len(theta)), np.array([1e-12, 1.0]))
    np.testing.assert_array_equal(trial, theta)
    assert promised == 0


@pytest.mark.parametrize("dense_below", [1000, 0], ids=["dense", "stochastic"])
def test_a_search_finds_its_way_back(dense_below):
    """From ℓ = 5,000, where ∂L/∂log ℓ is 2e-5, to what a start in sight of it finds."""
    lost = objective(np.array([1.0, 5000.0, 1.0]), dense_below=dense_below)
    start = lost.parameters.get()
    assert abs(lost(start)[1][1]) < 1e-4
    lbfgs(lost, 60, lambda *_: None)
    near = objective(np.array([1.0, 1.0, 1.0]))
    lbfgs(near, 60, lambda *_: None)
    best = reference_loss(near, near.parameters.get())
    assert reference_loss(lost, lost.parameters.get()) < best + 0.01
    assert best < reference_loss(lost, start) - 0.5
