"""The rational quadratic kernel."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from megagp.kernels.hyperparameter import Positive, Value
from megagp.kernels.stationary import Stationary


class RationalQuadratic(Stationary):
    """A mixture of RBF kernels over all lengthscales; RBF itself as alpha grows.

    k(x, z) = outputscale * (1 + r**2 / (2 * alpha))**-alpha
    r = norm((x - z) / lengthscale)

    Rasmussen & Williams (2006), eq. 4.19.
    """

    alpha = Positive()

    def __init__(
        self,
        lengthscale: Value = 1.0,
        outputscale: Value = 1.0,
        alpha: Value = 1.0,
        *,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(lengthscale, outputscale, alpha=alpha, active_dims=active_dims)

    def radial(self, r: Tensor) -> Tensor:
        alpha = self.alpha.to(r)
        # log1p keeps digits that 1 + r^2 / (2 alpha) would round away when alpha is large.
        return (-alpha * (r * r / (2 * alpha)).log1p()).exp()
