"""What an engine is: four verbs on a prepared pair of point sets.

An engine evaluates K = k(X, Z) and does not store it unless told to. `prepare` does what depends
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
    """Part `index` of `count` disjoint parts of the tile pairs: their products add up to K V.

    weights: the relative sizes of the parts, `count` of them; None for equal ones.
    A pair of tiles (I, J) has a place in [0, 2^32); a share owns an interval of places. As
    multiples of 1/g and 1/g², g³ = g + 1, places are spread evenly along every row, diagonal
    and band of pairs: each share has its part of what is dear, cheap, or left by culling.
    """

    index: int
    count: int
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(
                f"share: expected 0 <= index < count, got index {self.index} of {self.count}; "
                "parts are counted from 0"
            )
        w = self.weights
        if w is not None and not (
            len(w) == self.count and all(0 <= x < float("inf") for x in w) and sum(w) > 0
        ):
            raise ValueError(
                f"weights: expected {self.count} finite numbers >= 0, not all 0, got {w}"
            )

    @property
    def interval(self) -> tuple[int, int]:
        """The places that this share owns: from the first up to, not including, the second."""
        return self._cut(self.index), self._cut(self.index + 1)

    def owns(self, row: int, col: int) -> bool:
        """Whether the pair of tiles (row, col) is in this share."""
        start, stop = self.interval
        return start <= (row * ROW_STEP + col * COL_STEP) % 2**64 >> 32 < stop

    def _cut(self, index: int) -> int:
        if self.weights is None:
            return (index << 32) // self.count
        if index == self.count:
            return 1 << 32
        return int(sum(self.weights[:index]) / sum(self.weights) * 2**32)


# 2^64 / g and 2^64 / g², as in native/driver.h.
ROW_STEP, COL_STEP = 0xC13FA9A902A6328F, 0x91E10DA5C79E7B1C
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
    `far_fraction` of the entries are approximated by polynomials (NativeEngine), none of them by
    more than `far_error`, all together by at most `far_bound` in the spectral norm. That is for one
    right-hand side; with many, evaluating every entry may be faster, and is then done.
    `summed` is the largest entry that is rounded and added up, relative to the largest of K.
    """

    culled_fraction: float = 0.0
    culling_bound: float = 0.0
    far_fraction: float = 0.0
    far_error: float = 0.0
    far_bound: float = 0.0
    summed: float = 1.0


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

    kept = False  # whether products keep entries for the next ones

    def keep(self, budget: int | None) -> bool:
        """Keep entries between products, if this engine does so and all fit into `budget` bytes.

        None: if that pays, in as much memory as keeping.py allows.
        """
        return False

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
