"""Columns shifted to mean 0 and scaled to variance 1, and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Whitening:
    """x -> (x - centre) / scale, column by column.

    A constant column is centred only, as in scikit-learn: its scale is 1. It becomes 0 to the
    last bit, so that no coefficient can be fitted to it.
    """

    centre: Tensor
    scale: Tensor

    @classmethod
    def of(cls, X: Tensor, *, identity: bool = False) -> Whitening:
        if identity:
            return cls(torch.zeros_like(X[0]), torch.ones_like(X[0]))
        centre = X.mean(0)
        scale = (X - centre).square().mean(0).sqrt()
        # The rounding of the mean alone makes a constant column look like a varying one.
        constant = scale <= 1e-12 * centre.abs() + 1e-300
        return cls(torch.where(constant, X[0], centre), torch.where(constant, 1.0, scale))

    def apply(self, X: Tensor) -> Tensor:
        return (X - self.centre) / self.scale

    def undo(self, X: Tensor) -> Tensor:
        return X * self.scale + self.centre
