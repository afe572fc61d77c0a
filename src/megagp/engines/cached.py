"""K kept in memory, where the caller's budget allows it."""

from __future__ import annotations

import torch
from torch import Tensor

from megagp.engines.base import WHOLE, Gradient, Prepared, Share, Statistics

CHUNK = 16 * 2**20  # bytes of K widened to float64 at a time


class Cached(Prepared):
    """Evaluates K once, in its evaluation dtype, and multiplies by what it kept: O(n m) memory."""

    def __init__(self, inner: Prepared, n: int, m: int, device: torch.device) -> None:
        self._inner = inner
        self._K = inner.block(torch.arange(n, device=device), torch.arange(m, device=device))

    @property
    def statistics(self) -> Statistics:
        return Statistics()

    def matmul(self, V: Tensor, share: Share = WHOLE) -> Tensor:
        if share != WHOLE:
            return self._inner.matmul(V, share)
        rows = max(1, CHUNK // (8 * self._K.shape[1]))
        return torch.cat([part.double() @ V for part in torch.split(self._K, rows)])

    def block(self, rows: Tensor, cols: Tensor) -> Tensor:
        return self._K[rows[:, None], cols]

    def diagonal(self) -> Tensor:
        return self._inner.diagonal()

    def gradient(
        self, U: Tensor, W: Tensor, *, inputs: bool = False, share: Share = WHOLE
    ) -> Gradient:
        return self._inner.gradient(U, W, inputs=inputs, share=share)
