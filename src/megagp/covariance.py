"""K̂ = K + diag(noise): the covariance of the observations, by its products."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from megagp.distributed import Ranks
from megagp.operator import KernelOperator


@dataclass(frozen=True)
class Covariance:
    """K̂ = K + diag(noise), n x n.

    operator: symmetric K. noise: n, float64, the variance of each observation beyond K.
    effects: n, what of that is an effect of the place, and no noise; None for nothing.
    """

    operator: KernelOperator
    noise: Tensor
    effects: Tensor | None = None

    def __len__(self) -> int:
        return len(self.noise)

    @property
    def ranks(self) -> Ranks:
        """Who computes its products together."""
        return self.operator.ranks

    def matmul(self, V: Tensor) -> Tensor:
        """K̂ V, n x t, float64."""
        with torch.no_grad():
            return self.operator.matmul(V).addcmul_(self.noise[:, None], V)

    def precise(self) -> Covariance:
        """The same with entries evaluated in float64: about twice the time of a product."""
        return replace(self, operator=self.operator.astype("float64"))
