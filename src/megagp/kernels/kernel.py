"""What a kernel is: named positive hyperparameters and a formula."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from operator import index

import torch
from torch import Tensor
from typing_extensions import Self

from megagp.kernels.hyperparameter import Hyperparameter, Positive, Value


class Kernel(ABC):
    """Abstract: a covariance function k(x, z) of two points.

    A kernel of your own declares hyperparameters and writes the formula:

        class Cauchy(Kernel):
            lengthscale = Positive()

            def evaluate(self, X, Z):
                return 1 / (1 + torch.cdist(X, Z).square() / self.lengthscale**2)

    Set `stationary = True` if k depends on x - z alone: engines then centre the
    points first, which float32 needs when inputs lie far from zero.
    The same kernel object used twice in a sum or product shares its hyperparameters.
    """

    stationary: bool = False

    # NumPy scalars then leave `np.float64(2) * kernel` to __rmul__.
    __array_ufunc__ = None

    def __init__(
        self, *, active_dims: Sequence[int] | None = None, **hyperparameters: Value
    ) -> None:
        declared = self.declared()
        unknown = hyperparameters.keys() - declared.keys()
        if unknown:
            raise TypeError(
                f"{type(self).__name__}: expected keywords among "
                f"{', '.join([*declared, 'active_dims'])}, got {', '.join(sorted(unknown))}; "
                "check the spelling"
            )
        for name, positive in declared.items():
            vars(self)[name] = positive.create(hyperparameters.get(name, positive.default))
        self.active_dims = _checked_dims(active_dims)

    @classmethod
    def declared(cls) -> dict[str, Positive]:
        """The hyperparameters that the class and its bases declare, in that order."""
        names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
        found = {name: getattr(cls, name, None) for name in names}
        return {name: item for name, item in found.items() if isinstance(item, Positive)}

    @abstractmethod
    def evaluate(self, X: Tensor, Z: Tensor) -> Tensor:
        """K[i, j] = k(X[i], Z[j]): n x m from n x d and m x d, on the device and dtype of X."""

    def diagonal(self, X: Tensor) -> Tensor:
        """k(X[i], X[i]): n. Evaluates small diagonal blocks, never n x n."""
        return torch.cat([self.evaluate(block, block).diagonal() for block in torch.split(X, 64)])

    def select(self, X: Tensor) -> Tensor:
        """The columns of X that this kernel looks at."""
        self.check_inputs(X.shape[-1])
        if self.active_dims is None:
            return X
        # Not X[:, list]: that would send the list to a GPU, and wait for it, at every call.
        return torch.stack([X[..., c] for c in self.active_dims], dim=-1)

    def check_inputs(self, d: int) -> None:
        """Raise ValueError unless the kernel fits points with d columns."""
        if self.active_dims is not None and max(self.active_dims) >= d:
            raise ValueError(
                f"active_dims: expected columns below {d}, the number of columns of X, "
                f"got {self.active_dims}; columns count from 0"
            )
        active = d if self.active_dims is None else len(self.active_dims)
        for name in self.declared():
            value = getattr(self, name)
            if value.ndim == 1 and len(value) != active:
                raise ValueError(
                    f"{name}: expected one value, or {active} for as many active columns of X, "
                    f"got {len(value)}; give one per column"
                )

    def hyperparameters(self) -> dict[str, Hyperparameter]:
        """Every hyperparameter by name; those of a sum or product carry the part's position."""
        return {name: vars(self)[name] for name in self.declared()}

    def values(self) -> dict[str, Tensor]:
        """The value of every hyperparameter by name."""
        return {name: h.value for name, h in self.hyperparameters().items()}

    def __getitem__(self, name: str) -> Tensor:
        return self._find(name).value

    def __setitem__(self, name: str, value: Value) -> None:
        self._find(name).set(value)

    def bind(self, values: Mapping[str, Tensor]) -> Self:
        """A copy that reads the given tensors, as they are; names left out stay shared."""
        bound = copy.copy(self)
        for name, value in values.items():
            vars(bound)[name] = self._find(name).bind(value)
        return bound

    def on(self, device: torch.device | str, dtype: torch.dtype) -> Self:
        """A shallow copy whose values lie on `device` in `dtype`, for evaluation there."""
        return self.bind({name: v.to(device, dtype) for name, v in self.values().items()})

    def freeze(self, *names: str) -> Self:
        """Leave the named hyperparameters (all, if none is named) out of training; returns self."""
        for name in names or self.hyperparameters():
            h = self._find(name)
            h.requires_grad_(False)
            h.frozen = True
        return self

    def unfreeze(self, *names: str) -> Self:
        """Undo `freeze`; returns self."""
        for name in names or self.hyperparameters():
            self._find(name).frozen = False
        return self

    def requires_grad_(self, flag: bool = True) -> Self:
        """Turn gradients of the unfrozen raw tensors on or off; returns self."""
        for h in self.hyperparameters().values():
            if not h.frozen:
                h.requires_grad_(flag)
        return self

    def parameters(self) -> list[Tensor]:
        """The unfrozen raw tensors, each once, as torch.optim wants them."""
        free = [h.raw for h in self.hyperparameters().values() if not h.frozen]
        return list({id(raw): raw for raw in free}.values())

    def copy(self) -> Self:
        """An independent kernel with the same values and frozen marks, without graph."""
        return copy.deepcopy(self)

    def _find(self, name: str) -> Hyperparameter:
        found = self.hyperparameters()
        if name not in found:
            raise KeyError(f"{name!r}: expected one of {', '.join(found) or 'no names at all'}")
        return found[name]

    def __add__(self, other: object) -> Kernel:
        return composite.add(self, other)

    def __radd__(self, other: object) -> Kernel:
        return composite.add(other, self)

    def __mul__(self, other: object) -> Kernel:
        return composite.multiply(self, other)

    def __rmul__(self, other: object) -> Kernel:
        return composite.multiply(other, self)

    def __repr__(self) -> str:
        shown = [repr(h) for h in self.hyperparameters().values()]
        if self.active_dims is not None:
            shown.append(f"active_dims={self.active_dims}")
        return f"{type(self).__name__}({', '.join(shown)})"


def _checked_dims(active_dims: Sequence[int] | None) -> tuple[int, ...] | None:
    if active_dims is None:
        return None
    dims = tuple(index(c) for c in active_dims)
    if not dims or min(dims) < 0 or len(set(dims)) < len(dims):
        raise ValueError(
            f"active_dims: expected distinct column numbers from 0, got {dims}; "
            "leave it out to use every column"
        )
    return dims


# Last, because a Sum is itself a Kernel: the two modules need one another.
from megagp.kernels import composite  # noqa: E402
