"""What all kernels share: names, binding, freezing, copies, checks."""

import copy
import pickle

import pytest
import torch

from megagp.kernels import RBF, Kernel, Linear, Matern32, Periodic, Positive, RationalQuadratic


class Cauchy(Kernel):
    """k(x, z) = 1 / (1 + ||x - z||^2 / lengthscale^2)"""

    lengthscale = Positive()

    def evaluate(self, X, Z):
        return 1 / (1 + torch.cdist(X, Z).square() / self.lengthscale**2)


class Scaled(Cauchy):
    factor = Positive(default=2.0)

    def evaluate(self, X, Z):
        return self.factor * super().evaluate(X, Z)


def test_a_kernel_of_your_own():
    kernel = Cauchy(lengthscale=2.0)
    X = torch.tensor([[0.0], [2.0]])
    torch.testing.assert_close(kernel.evaluate(X, X), torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
    torch.testing.assert_close(kernel.diagonal(torch.randn(130, 2)), torch.ones(130))
    assert kernel.diagonal(torch.ones(0, 2)).shape == (0,)
    assert not kernel.stationary
    assert repr(kernel) == "Cauchy(lengthscale=2)"
    assert list(Scaled().values()) == ["lengthscale", "factor"]
    assert Scaled().factor.item() == pytest.approx(2.0)


def test_unknown_keywords_are_named():
    with pytest.raises(TypeError, match=r"Cauchy: .*among lengthscale, active_dims, got scale"):
        Cauchy(scale=1.0)
    with pytest.raises(TypeError, match="got alpha"):
        Matern32(alpha=1.0)


def test_kernels_are_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Kernel()


def test_positional_arguments():
    assert RBF(0.5, 2.0).outputscale.item() == pytest.approx(2.0)
    assert RationalQuadratic(0.5, 2.0, 3.0).alpha.item() == pytest.approx(3.0)
    assert Periodic(0.5, 2.0, 3.0).period.item() == pytest.approx(3.0)


def test_get_and_set_by_name():
    kernel = Matern32(0.7)
    kernel["outputscale"] = 4.0
    assert kernel["outputscale"].item() == pytest.approx(4.0)
    assert kernel.outputscale.item() == pytest.approx(4.0)
    with pytest.raises(KeyError, match="'alpha': expected one of lengthscale, outputscale"):
        kernel["alpha"]
    with pytest.raises(KeyError, match="expected one of lengthscale, outputscale"):
        kernel["alpha"] = 1.0


def test_bind_reads_the_very_tensors():
    kernel = Matern32(0.7)
    value = torch.tensor(2.0, dtype=torch.float32, requires_grad=True)
    bound = kernel.bind({"lengthscale": value})
    assert bound.lengthscale is value
    assert type(bound) is Matern32
    assert bound.outputscale.item() == pytest.approx(1.0)
    assert kernel.lengthscale.item() == pytest.approx(0.7)
    with pytest.raises(KeyError, match="expected one of lengthscale, outputscale"):
        kernel.bind({"alpha": value})


def test_a_bound_kernel_does_not_own_its_values():
    kernel = Matern32(0.7)
    bound = kernel.on("cpu", torch.float32)
    for change in (lambda: bound.__setitem__("lengthscale", 1.0), bound.requires_grad_):
        with pytest.raises(TypeError, match=r"lengthscale: .* got one made by bind\(\)"):
            change()
    own = bound.copy()
    own.lengthscale = 1.0
    assert own.outputscale.dtype == torch.float64
    assert kernel.lengthscale.item() == pytest.approx(0.7)


def test_on_moves_values():
    kernel = Matern32([0.7, 1.0]).freeze("outputscale")
    moved = kernel.on("meta", torch.float32)
    assert moved.lengthscale.device.type == "meta"
    assert moved.lengthscale.dtype == torch.float32
    assert moved.hyperparameters()["outputscale"].frozen
    assert kernel.lengthscale.device.type == "cpu"


def test_freeze_and_train():
    kernel = Matern32(0.7).requires_grad_().freeze("outputscale")
    assert [h.frozen for h in kernel.hyperparameters().values()] == [False, True]
    assert len(kernel.parameters()) == 1
    assert not kernel.outputscale.requires_grad
    optimiser = torch.optim.SGD(kernel.parameters(), lr=1.0)
    (kernel.lengthscale.log() * kernel.outputscale).backward()
    optimiser.step()
    assert kernel.lengthscale.item() == pytest.approx(0.7 / 2.718281828459045)
    kernel.unfreeze().requires_grad_()
    assert kernel.outputscale.requires_grad
    assert kernel.freeze().parameters() == []
    with pytest.raises(KeyError, match="expected one of"):
        kernel.freeze("noise")


def test_requires_grad_ends_a_graph():
    value = torch.tensor(2.0, requires_grad=True)
    kernel = Matern32(value * 1).requires_grad_(False)
    assert not kernel.lengthscale.requires_grad


@pytest.mark.parametrize(
    "duplicate", [Kernel.copy, copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k))]
)
def test_copies_are_independent_and_carry_no_graph(duplicate):
    value = torch.tensor([0.5, 2.0], requires_grad=True)
    kernel = Matern32(value * 2, active_dims=[0, 2]).freeze("outputscale")
    other = duplicate(kernel)
    assert repr(other) == repr(kernel)
    assert not other.lengthscale.requires_grad
    other.lengthscale = [3.0, 3.0]
    torch.testing.assert_close(kernel.lengthscale.detach(), value.detach().double() * 2)


def test_active_dims_choose_columns():
    X = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for kind in (Matern32, Linear, Periodic):
        K = kind([0.5, 2.0], active_dims=[3, 1]).evaluate(X, X)
        torch.testing.assert_close(K, kind([0.5, 2.0]).evaluate(X[:, [3, 1]], X[:, [3, 1]]))


@pytest.mark.parametrize("dims", [[], [-1], [0, 0]])
def test_active_dims_are_distinct_columns(dims):
    with pytest.raises(ValueError, match="active_dims: expected distinct column numbers"):
        RBF(active_dims=dims)


def test_active_dims_are_integers():
    with pytest.raises(TypeError):
        RBF(active_dims=[0.5])


def test_check_inputs():
    RBF().check_inputs(5)
    RBF([1.0, 2.0]).check_inputs(2)
    RBF([1.0, 2.0], active_dims=[0, 4]).check_inputs(5)
    with pytest.raises(ValueError, match=r"lengthscale: expected one value, or 3 .* got 2"):
        RBF([1.0, 2.0]).check_inputs(3)
    with pytest.raises(ValueError, match=r"lengthscale: expected one value, or 3 .* got 1"):
        RBF([1.0]).evaluate(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"active_dims: expected columns below 2.* got \(0, 2\)"):
        RBF(active_dims=[0, 2]).check_inputs(2)


def test_repr():
    assert repr(Matern32(0.7)) == "Matern32(lengthscale=0.7, outputscale=1)"
    assert repr(Matern32([0.7, 1.23456]).freeze("outputscale")) == (
        "Matern32(lengthscale=[0.7, 1.235], outputscale=1 (frozen))"
    )
    assert repr(RBF(active_dims=(0, 2))) == "RBF(lengthscale=1, outputscale=1, active_dims=(0, 2))"
    assert "8, ... 9 values]" in repr(RBF(torch.arange(1.0, 10.0)))
