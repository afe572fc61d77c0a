"""Hyperparameters: positive by construction, set by value, trained by logarithm."""

import math

import numpy as np
import pytest
import torch

from megagp.kernels import RBF, Hyperparameter, Matern32, Positive


def test_value_is_exp_of_raw():
    h = Hyperparameter("lengthscale", 0.7)
    assert h.raw.dtype == torch.float64
    assert h.raw.item() == pytest.approx(math.log(0.7))
    assert h.value.item() == pytest.approx(0.7, rel=1e-15)


@pytest.mark.parametrize(
    "value", [2, 2.0, np.float32(2), np.array(2.0), torch.tensor(2.0), torch.tensor(2)]
)
def test_numbers_of_any_kind_are_taken(value):
    assert RBF(value).lengthscale.item() == pytest.approx(2.0)


@pytest.mark.parametrize("value", [[1, 2], (1.0, 2.0), np.array([1, 2]), torch.tensor([1, 2])])
def test_sequences_of_any_kind_are_taken(value):
    np.testing.assert_allclose(RBF(value).lengthscale, [1.0, 2.0])


@pytest.mark.parametrize("value", [1e-300, 5e-324, 1e300])
def test_extreme_values_survive(value):
    assert RBF(value).lengthscale.item() == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("value", [-1.0, 0.0, math.nan, math.inf, [1.0, -1.0], [math.nan, 1.0]])
def test_values_that_are_not_positive_and_finite_are_refused(value):
    with pytest.raises(ValueError, match=r"lengthscale: expected positive finite numbers, got"):
        RBF(value)
    kernel = RBF(np.ones_like(value))
    with pytest.raises(ValueError, match=r"lengthscale: expected positive finite numbers, got"):
        kernel.lengthscale = value
    np.testing.assert_array_equal(kernel.lengthscale, np.ones_like(value))


@pytest.mark.parametrize("value", [[], [[1.0]]])
def test_shapes_that_make_no_sense_are_refused(value):
    with pytest.raises(ValueError, match="lengthscale: expected one number, or one per dimension"):
        RBF(value)


@pytest.mark.parametrize("value", ["long", None, object(), [1.0, "a"]])
def test_things_that_are_no_numbers_are_refused(value):
    with pytest.raises(TypeError, match="lengthscale: expected a number or a sequence"):
        RBF(value)


def test_vectors_need_per_dimension():
    with pytest.raises(ValueError, match=r"outputscale: expected one number, got shape \(2,\)"):
        RBF(outputscale=[1.0, 2.0])


def test_the_shape_is_fixed_at_construction():
    for kernel, value in [(RBF(1.0), [1.0, 2.0]), (RBF([1.0, 2.0]), 1.0), (RBF([1.0]), [1.0, 2.0])]:
        with pytest.raises(ValueError, match=r"lengthscale: expected shape .* got .* new kernel"):
            kernel.lengthscale = value


def test_a_value_with_a_graph_keeps_it():
    value = torch.tensor([0.5, 2.0], requires_grad=True)
    kernel = RBF(value)
    kernel.lengthscale.sum().backward()
    torch.testing.assert_close(value.grad, torch.ones(2))
    kernel = RBF(1.0)
    kernel.outputscale = 3 * value[0]
    kernel.outputscale.backward()
    torch.testing.assert_close(value.grad, torch.tensor([4.0, 1.0]))
    kernel.outputscale = 2.0
    assert not kernel.outputscale.requires_grad


def test_setting_reaches_an_optimiser_that_holds_raw():
    kernel = RBF().requires_grad_()
    raw = kernel.parameters()[0]
    kernel.lengthscale = 3.0
    assert raw.exp().item() == pytest.approx(3.0)
    assert raw.requires_grad


def test_declarations_are_readable_on_the_class():
    assert isinstance(Matern32.lengthscale, Positive)
    assert Matern32.lengthscale.per_dimension
    assert list(Matern32.declared()) == ["lengthscale", "outputscale"]


def test_repr():
    h = Hyperparameter("lengthscale", np.arange(1.0, 10.0), per_dimension=True)
    h.frozen = True
    assert repr(h) == "lengthscale=[1, 2, 3, 4, 5, 6, 7, 8, ... 9 values] (frozen)"
