"""K kept in memory, where the caller's budget allows it."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from megagp.engines.base import WHOLE, Gradient, Prepared, Share, Statistics

CHUNK = 16 * 2**20  # bytes of K widened to float64 at a time


class Cached(Prepared):
    """Evaluates K once, in its evaluation dtype, and multiplies by what it kept: O(n m) memory.

    The first product does so: who asks for blocks alone need not pay for all of K.
    """

    kept = True

    def __init__(self, inner: Prepared, n: int, m: int, device: torch.device) -> None:
        self._inner = inner
        self._rows, self._cols = (torch.arange(count, device=device) for count in (n, m))

    @cached_property
    def _K(self) -> Tensor:
        return self._inner.block(self._rows, self._cols)

    @property
    def statistics(self) -> Statistics:
        return Statistics()

    def matmul(self, V: Tensor, share: Share = WHOLE) -> Tensor:
        if share != WHOLE:
            return self._inner.matmul(V, share)
        rows = max(1, CHUNK // (8 * self._K.shape[1]))
        return torch.cat([part.double() @ V for part in torch.split(self._K, rows)])

    def block(self, rows: Tensor, cols: Tensor) -> Tensor:
        if "_K" not in self.__dict__:
            return self._inner.block(rows, cols)
        return self._K[rows[:, None], cols]

    def diagonal(self) -> Tensor:
        return self._inner.diagonal()

    def gradient(
        self, U: Tensor, W: Tensor, *, inputs: bool = False, share: Share = WHOLE
    ) -> Gradient:
        return self._inner.gradient(U, W, inputs=inputs, share=share)
