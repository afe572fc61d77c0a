"""The constant kernel."""

from __future__ import annotations

from torch import Tensor

from megagp.kernels.hyperparameter import Positive, Value
from megagp.kernels.kernel import Kernel


class Constant(Kernel):
    """The same covariance for every pair: an unknown offset, or a factor of other kernels.

    k(x, z) = outputscale
    """

    stationary = True
    outputscale = Positive()

    def __init__(self, outputscale: Value = 1.0) -> None:
        super().__init__(outputscale=outputscale)

    def evaluate(self, X: Tensor, Z: Tensor) -> Tensor:
        return self.outputscale.to(X).expand(len(X), len(Z))

    def diagonal(self, X: Tensor) -> Tensor:
        return self.outputscale.to(X).expand(len(X))
