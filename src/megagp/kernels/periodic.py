"""The periodic kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from megagp.kernels.hyperparameter import Positive, Value
from megagp.kernels.stationary import Stationary


class Periodic(Stationary):
    """Functions that repeat exactly, with the same period in every active dimension.

    k(x, z) = outputscale * exp(-2 * sum(sin(pi * (x - z) / period)**2 / lengthscale**2))

    MacKay (1998); Rasmussen & Williams (2006), eq. 4.31.
    """

    period = Positive()

    def __init__(
        self,
        lengthscale: Value = 1.0,
        outputscale: Value = 1.0,
        period: Value = 1.0,
        *,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(lengthscale, outputscale, period=period, active_dims=active_dims)

    def features(self, X: Tensor) -> Tensor:
        """Points on one circle per dimension, n x 2d: an RBF between them is periodic in x.

        |cos(a) - cos(b)|^2 + |sin(a) - sin(b)|^2 = 4 sin((a - b) / 2)^2
        """
        angle = 2 * math.pi * (self.select(X) / self.period.to(X))
        lengthscale = self.lengthscale.to(X)
        return torch.cat([angle.cos() / lengthscale, angle.sin() / lengthscale], dim=-1)

    def radial(self, r: Tensor) -> Tensor:
        return (-0.5 * r * r).exp()
