"""Matérn kernels of smoothness 1/2, 3/2 and 5/2."""

from __future__ import annotations

import math

from torch import Tensor

from megagp.kernels.stationary import Stationary


class Matern12(Stationary):
    """Matérn-1/2, the exponential kernel: continuous, rough samples.

    k(x, z) = outputscale * exp(-r)
    r = norm((x - z) / lengthscale)

    Rasmussen & Williams (2006), eq. 4.14 and 4.18.
    """

    def radial(self, r: Tensor) -> Tensor:
        return (-r).exp()


class Matern32(Stationary):
    """Matérn-3/2: samples differentiable once.

    k(x, z) = outputscale * (1 + sqrt(3) * r) * exp(-sqrt(3) * r)
    r = norm((x - z) / lengthscale)

    Rasmussen & Williams (2006), eq. 4.17.
    """

    def radial(self, r: Tensor) -> Tensor:
        s = math.sqrt(3) * r
        return (1 + s) * (-s).exp()


class Matern52(Stationary):
    """Matérn-5/2: samples differentiable twice.

    k(x, z) = outputscale * (1 + sqrt(5) * r + 5 / 3 * r**2) * exp(-sqrt(5) * r)
    r = norm((x - z) / lengthscale)

    Rasmussen & Williams (2006), eq. 4.17.
    """

    def radial(self, r: Tensor) -> Tensor:
        s = math.sqrt(5) * r
        return (1 + s + s * s / 3) * (-s).exp()
