"""The squared exponential kernel."""

from __future__ import annotations

from torch import Tensor

from megagp.kernels.stationary import Stationary


class RBF(Stationary):
    """Squared exponential (radial basis function): infinitely smooth samples.

    k(x, z) = outputscale * exp(-r**2 / 2)
    r = norm((x - z) / lengthscale)

    Rasmussen & Williams (2006), eq. 4.9.
    """

    def radial(self, r: Tensor) -> Tensor:
        return (-0.5 * r * r).exp()
