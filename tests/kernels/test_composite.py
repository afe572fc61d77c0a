"""Sums and products: the algebra, the names, the way they are shown."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megagp.kernels import RBF, Constant, Linear, Matern12, Matern32, Periodic, Product, Sum

X = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Z = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

scales = st.floats(0.1, 10.0)
leaves = st.one_of(
    st.builds(Constant, scales),
    st.builds(Linear, scales, scales),
    st.builds(Matern12, scales, scales),
    st.builds(RBF, st.lists(scales, min_size=2, max_size=2), scales),
    st.builds(Periodic, scales, scales, scales, active_dims=st.just([1])),
)
kernels = st.recursive(
    leaves,
    lambda k: st.one_of(st.builds(Sum, k, k), st.builds(Product, k, k)),
    max_leaves=4,
)
algebra = settings(deadline=None, max_examples=25, derandomize=True, database=None)


def close(a, b):
    for found, expected in ((a.evaluate(X, Z), b.evaluate(X, Z)), (a.diagonal(X), b.diagonal(X))):
        # Summands may cancel in one entry; they are no larger than where they do not.
        atol = 1e-14 * float(expected.abs().max()) + 1e-300
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=atol)
    return True


@algebra
@given(kernels, kernels)
def test_commutativity(a, b):
    assert close(a + b, b + a)
    assert close(a * b, b * a)


@algebra
@given(kernels, kernels, kernels)
def test_associativity_and_distributivity(a, b, c):
    assert close((a + b) + c, a + (b + c))
    assert close((a * b) * c, a * (b * c))
    assert close(a * (b + c), a * b + a * c)


@algebra
@given(kernels, kernels, scales)
def test_numbers_are_constants(a, b, number):
    assert close(number * (a + b), a * number + number * b)
    assert close(a + number, Constant(number) + a)


@algebra
@given(st.lists(kernels, min_size=1, max_size=4))
def test_sum_of_a_list(parts):
    torch.testing.assert_close(
        sum(parts).evaluate(X, Z), sum(part.evaluate(X, Z) for part in parts), rtol=1e-12, atol=0.0
    )


@algebra
@given(kernels)
def test_names_lead_to_the_parts(kernel):
    assert list(kernel.values()) == list(kernel.hyperparameters())
    bound = kernel.bind({name: value + 1 for name, value in kernel.values().items()})
    for name, value in kernel.values().items():
        torch.testing.assert_close(bound[name], value + 1)
    kernel = pickle.loads(pickle.dumps(kernel))
    for name in kernel.values():
        kernel[name] = kernel[name] + 1
    assert close(kernel, bound)


def test_evaluate_by_hand():
    a, b = Matern32(0.5), Linear(2.0)
    torch.testing.assert_close((a + b).evaluate(X, Z), a.evaluate(X, Z) + b.evaluate(X, Z))
    torch.testing.assert_close((a * b).evaluate(X, Z), a.evaluate(X, Z) * b.evaluate(X, Z))


def test_zero_plus_a_kernel_is_the_kernel():
    kernel = RBF()
    assert 0 + kernel is kernel
    assert kernel + 0 is kernel
    assert sum([kernel]) is kernel


def test_numpy_numbers_join():
    assert isinstance(np.float64(2.0) * RBF(), Product)
    assert isinstance(RBF() + np.float32(2.0), Sum)


@pytest.mark.parametrize("number", [-1.0, float("nan")])
def test_numbers_must_be_positive(number):
    with pytest.raises(ValueError, match="outputscale: expected positive finite numbers"):
        RBF() * number
    with pytest.raises(ValueError, match="outputscale: expected positive finite numbers"):
        number + RBF()


def test_zero_is_no_factor():
    with pytest.raises(ValueError, match=r"outputscale: expected positive finite numbers, got 0.0"):
        0 * RBF()


def test_other_operands_are_refused():
    for other in ("a", None, [1.0], np.ones(2)):
        with pytest.raises(TypeError):
            RBF() + other
        with pytest.raises(TypeError):
            other * RBF()
    with pytest.raises(TypeError, match="Sum: expected one or more kernels"):
        Sum()
    with pytest.raises(TypeError, match="Product: expected one or more kernels"):
        Product(RBF(), 2.0)


def test_flattening_and_names():
    a, b, c = RBF(), Matern12(), Constant()
    assert (a + (b + c)).parts == (a, b, c)
    assert ((a * b) * c).parts == (a, b, c)
    assert list((a + b * c).values()) == [
        "0.lengthscale",
        "0.outputscale",
        "1.0.lengthscale",
        "1.0.outputscale",
        "1.1.outputscale",
    ]
    kernel = a + b * c
    kernel["1.0.lengthscale"] = 3.0
    assert b.lengthscale.item() == pytest.approx(3.0)
    with pytest.raises(KeyError, match=r"'2.lengthscale': expected one of 0.lengthscale"):
        kernel["2.lengthscale"]
    with pytest.raises(KeyError, match=r"expected one of 0.lengthscale"):
        kernel.bind({"lengthscale": torch.tensor(1.0)})


def test_bind_leaves_the_original_alone():
    kernel = RBF(0.5) + Matern12(0.7)
    value = torch.tensor(2.0)
    bound = kernel.bind({"1.lengthscale": value})
    assert bound["1.lengthscale"] is value
    assert bound.parts[1].lengthscale is value
    assert kernel["1.lengthscale"].item() == pytest.approx(0.7)


def test_a_part_used_twice_is_one_parameter():
    part = RBF().freeze("outputscale")
    kernel = part + part * Linear().freeze()
    assert len(kernel.parameters()) == 1
    copied = kernel.copy()
    copied["0.lengthscale"] = 5.0
    assert copied["1.0.lengthscale"].item() == pytest.approx(5.0)


def test_stationary_if_all_parts_are():
    assert (2 * RBF() + Periodic()).stationary
    assert not (RBF() + Linear()).stationary
    assert not (RBF() * Linear()).stationary


def test_checks_reach_the_parts():
    with pytest.raises(ValueError, match="lengthscale: expected one value, or 3"):
        (RBF() + Matern12([1.0, 2.0])).check_inputs(3)


def test_repr():
    a, b, c = Constant(2.0), Linear(0.5), Constant(0.1)
    assert repr(a + b) == "Constant(outputscale=2) + Linear(lengthscale=0.5, outputscale=1)"
    assert repr((a + c) * a + c) == (
        "(Constant(outputscale=2) + Constant(outputscale=0.1)) * Constant(outputscale=2)"
        " + Constant(outputscale=0.1)"
    )
    assert repr((a * c).freeze("1.outputscale")) == (
        "Constant(outputscale=2) * Constant(outputscale=0.1 (frozen))"
    )
