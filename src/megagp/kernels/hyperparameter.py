"""Positive quantities that a kernel depends on, and how a kernel class declares them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, overload

import torch
from numpy.typing import NDArray
from torch import Tensor

Value: TypeAlias = float | Sequence[float] | NDArray[Any] | Tensor


class Hyperparameter:
    """A positive quantity stored by its logarithm.

    value = exp(raw), so an optimiser may move `raw` anywhere.
    raw: float64 on the CPU, 0-d, or 1-d with one entry per input dimension.
    A frozen one is left out of training and of gradients.
    """

    def __init__(self, name: str, value: Value, *, per_dimension: bool = False) -> None:
        self.name = name
        self.per_dimension = per_dimension
        self.frozen = False
        self.raw = _checked(name, value, per_dimension).log()
        self._bound: Tensor | None = None

    @property
    def value(self) -> Tensor:
        """exp(raw), or the very tensor that `bind` was given."""
        return self.raw.exp() if self._bound is None else self._bound

    def set(self, value: Value) -> None:
        """Replace the value; its shape stays. A value that requires grad keeps its graph."""
        self._check_owned()
        raw = _checked(self.name, value, self.per_dimension).log()
        if raw.shape != self.raw.shape:
            raise ValueError(
                f"{self.name}: expected shape {tuple(self.raw.shape)}, got {tuple(raw.shape)}; "
                "make a new kernel to change between one shared value and one per dimension"
            )
        if raw.requires_grad or not self.raw.is_leaf:
            self.raw = raw
        else:
            # In place, so that an optimiser which holds `raw` sees the new value.
            with torch.no_grad():
                self.raw.copy_(raw)

    def bind(self, value: Tensor) -> Hyperparameter:
        """A stand-in whose value is exactly this tensor: any device, any dtype, any graph."""
        bound = Hyperparameter.__new__(Hyperparameter)
        vars(bound).update(vars(self), _bound=value)
        return bound

    def requires_grad_(self, flag: bool) -> None:
        """Turn the gradient of `raw` on or off; a graph behind it is dropped."""
        self._check_owned()
        if not self.raw.is_leaf:
            self.raw = self.raw.detach()
        self.raw.requires_grad_(flag)

    def _check_owned(self) -> None:
        if self._bound is not None:
            raise TypeError(
                f"{self.name}: expected a kernel that owns its hyperparameters, got one made by "
                "bind(); change the original, or a copy()"
            )

    def __getstate__(self) -> dict[str, Any]:
        # Serves copy, deepcopy and pickle: numbers travel, graphs and devices do not.
        if self._bound is None:
            raw = self.raw.detach().clone()
        else:
            raw = self._bound.detach().to("cpu", torch.float64).log()
        return {**vars(self), "raw": raw, "_bound": None}

    def __repr__(self) -> str:
        values = self.value.detach().reshape(-1).tolist()
        shown = ", ".join(f"{v:.4g}" for v in values[:8])
        if len(values) > 8:
            shown += f", ... {len(values)} values"
        if self.value.ndim:
            shown = f"[{shown}]"
        return f"{self.name}={shown}" + (" (frozen)" if self.frozen else "")


class Positive:
    """Declares a hyperparameter in the body of a kernel class.

    `lengthscale = Positive(per_dimension=True)`: read it on a kernel for its value,
    assign to set it. With `per_dimension` it may be a vector with one entry per
    active input dimension (ARD).
    """

    def __init__(self, default: float = 1.0, per_dimension: bool = False) -> None:
        self.default = default
        self.per_dimension = per_dimension

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def create(self, value: Value) -> Hyperparameter:
        """A new hyperparameter of this declaration."""
        return Hyperparameter(self.name, value, per_dimension=self.per_dimension)

    @overload
    def __get__(self, kernel: None, owner: type) -> Positive: ...

    @overload
    def __get__(self, kernel: object, owner: type) -> Tensor: ...

    def __get__(self, kernel: object | None, owner: type) -> Positive | Tensor:
        if kernel is None:
            return self
        # The kernel keeps the Hyperparameter under the same name; this descriptor goes first.
        hyperparameter: Hyperparameter = vars(kernel)[self.name]
        return hyperparameter.value

    def __set__(self, kernel: object, value: Value) -> None:
        vars(kernel)[self.name].set(value)


def _checked(name: str, value: Value, per_dimension: bool) -> Tensor:
    """The value as a float64 CPU tensor, after checking its type, shape and sign."""
    try:
        tensor = torch.as_tensor(value, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"{name}: expected a number or a sequence of numbers, got {value!r}; "
            "pass a float, list, array or tensor"
        ) from None
    if tensor.ndim > per_dimension or tensor.numel() == 0:
        expected = "one number, or one per dimension" if per_dimension else "one number"
        raise ValueError(
            f"{name}: expected {expected}, got shape {tuple(tensor.shape)}; "
            + ("pass a float or a 1-d sequence" if per_dimension else "pass a float")
        )
    bad = tensor.detach().reshape(-1)
    bad = bad[~(bad.isfinite() & (bad > 0))]
    if bad.numel():
        raise ValueError(
            f"{name}: expected positive finite numbers, got {bad[0].item()}; pass values above zero"
        )
    return tensor
