"""What an engine is: four verbs on a prepared pair of point sets.

An engine evaluates K = k(X, Z) and never stores it. `prepare` does what depends
on the points and the hyperparameters alone (scaling, packing, tile boxes), so a
solver that multiplies a hundred times pays for it once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from megagp.kernels import Kernel


class Support(NamedTuple):
    """Whether an engine can run a case, and the reason in a sentence."""

    ok: bool
    reason: str


@dataclass(frozen=True)
class Share:
    """Part `index` of `count` disjoint parts of the tile pairs: their products add up to K V."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(
                f"share: expected 0 <= index < count, got index {self.index} of {self.count}; "
                "parts are counted from 0"
            )


WHOLE = Share(0, 1)


@dataclass(frozen=True)
class Gradient:
    """Derivatives of sum(U * (K @ W)): by hyperparameter name, and by inputs when asked.

    For a symmetric operator (Z is X) `X` holds the total derivative and `Z` is None.
    """

    hyperparameters: dict[str, Tensor]
    X: Tensor | None = None
    Z: Tensor | None = None


@dataclass(frozen=True)
class Statistics:
    """What a prepared product will skip, and the bound on what that costs.

    `culling_bound` is at least the spectral norm of what culling leaves out of K.
    """

    culled_fraction: float = 0.0
    culling_bound: float = 0.0


class Prepared(ABC):
    """Abstract: K = k(X, Z) at fixed points and hyperparameters, ready to multiply.

    Tensors are on the device of X; products and gradients are float64.
    """

    @property
    @abstractmethod
    def statistics(self) -> Statistics:
        """What is skipped."""

    @abstractmethod
    def matmul(self, V: Tensor, share: Share = WHOLE) -> Tensor:
        """K @ V for V of shape m x t: n x t, float64."""

    @abstractmethod
    def block(self, rows: Tensor, cols: Tensor) -> Tensor:
        """K[rows][:, cols] for index tensors, in the evaluation dtype."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """k(x_i, x_i) for every row (only where Z is X): n, float64."""

    @abstractmethod
    def gradient(
        self, U: Tensor, W: Tensor, *, inputs: bool = False, share: Share = WHOLE
    ) -> Gradient:
        """Derivatives of sum(U * (K @ W)), U n x t, W m x t, in one pass over the pairs."""


class Engine(ABC):
    """Abstract: a way to evaluate kernels on pairs of points."""

    name: str

    def order(self, kernel: Kernel, X: Tensor) -> Tensor | None:
        """The order of the points in which this engine is fastest, if it cares."""
        return None

    @abstractmethod
    def supports(self, kernel: Kernel, X: Tensor, Z: Tensor | None, dtype: torch.dtype) -> Support:
        """Whether this engine can run the case, and why or why not."""

    @abstractmethod
    def prepare(
        self, kernel: Kernel, X: Tensor, Z: Tensor | None, dtype: torch.dtype, cull_tolerance: float
    ) -> Prepared:
        """Bind points (float64, n x d and m x d; Z None means Z is X) and kernel.

        `cull_tolerance` bounds the spectral norm of what may be left out of K;
        an engine that skips nothing ignores it.
        """
