"""Sums and products of kernels, and the operators that make them."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping
from functools import reduce
from numbers import Real

from torch import Tensor
from typing_extensions import Self

from megagp.kernels.constant import Constant
from megagp.kernels.hyperparameter import Hyperparameter
from megagp.kernels.kernel import Kernel


class Composite(Kernel):
    """Abstract: kernels joined entry by entry; one of the same class within is dissolved.

    Hyperparameters are named by the part's position: "0.lengthscale", "1.outputscale".
    """

    parts: tuple[Kernel, ...]

    def __init__(self, *parts: Kernel) -> None:
        super().__init__()
        if not parts or not all(isinstance(part, Kernel) for part in parts):
            raise TypeError(
                f"{type(self).__name__}: expected one or more kernels, got {parts!r}; "
                "pass them one after the other, or join them with + and *"
            )
        flat: list[Kernel] = []
        for part in parts:
            flat += part.parts if isinstance(part, type(self)) else [part]
        self.parts = tuple(flat)
        self.stationary = all(part.stationary for part in self.parts)

    @abstractmethod
    def combine(self, left: Tensor, right: Tensor) -> Tensor:
        """The values of two parts, entry by entry, into one."""

    def evaluate(self, X: Tensor, Z: Tensor) -> Tensor:
        return reduce(self.combine, (part.evaluate(X, Z) for part in self.parts))

    def diagonal(self, X: Tensor) -> Tensor:
        return reduce(self.combine, (part.diagonal(X) for part in self.parts))

    def check_inputs(self, d: int) -> None:
        for part in self.parts:
            part.check_inputs(d)

    def hyperparameters(self) -> dict[str, Hyperparameter]:
        return {
            f"{i}.{name}": h
            for i, part in enumerate(self.parts)
            for name, h in part.hyperparameters().items()
        }

    def bind(self, values: Mapping[str, Tensor]) -> Self:
        shares: list[dict[str, Tensor]] = [{} for _ in self.parts]
        for name, value in values.items():
            self._find(name)
            position, _, rest = name.partition(".")
            shares[int(position)][rest] = value
        bound = copy.copy(self)
        bound.parts = tuple(p.bind(share) for p, share in zip(self.parts, shares, strict=True))
        return bound


class Sum(Composite):
    """The sum of independent functions.

    k(x, z) = parts[0](x, z) + parts[1](x, z) + ...
    """

    def combine(self, left: Tensor, right: Tensor) -> Tensor:
        return left + right

    def __repr__(self) -> str:
        return " + ".join(repr(part) for part in self.parts)


class Product(Composite):
    """The product of covariances.

    k(x, z) = parts[0](x, z) * parts[1](x, z) * ...
    """

    def combine(self, left: Tensor, right: Tensor) -> Tensor:
        return left * right

    def __repr__(self) -> str:
        return " * ".join(f"({p!r})" if isinstance(p, Sum) else repr(p) for p in self.parts)


def add(left: object, right: object) -> Kernel:
    """left + right, where a positive number stands for a Constant and 0 for nothing."""
    # sum([k1, k2]) starts from 0.
    return _join(Sum, [term for term in (left, right) if not _is_zero(term)])


def multiply(left: object, right: object) -> Kernel:
    """left * right, where a positive number stands for a Constant."""
    return _join(Product, [left, right])


def _is_zero(operand: object) -> bool:
    return isinstance(operand, Real) and operand == 0


def _join(kind: type[Composite], operands: list[object]) -> Kernel:
    parts: list[Kernel] = []
    for operand in operands:
        if isinstance(operand, Kernel):
            parts.append(operand)
        elif isinstance(operand, Real):
            parts.append(Constant(float(operand)))
        else:
            return NotImplemented  # type: ignore[no-any-return]  # for Python's operators
    return kind(*parts) if len(parts) > 1 else parts[0]
