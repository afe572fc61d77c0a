"""The linear kernel."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from megagp.kernels.hyperparameter import Positive, Value
from megagp.kernels.kernel import Kernel


class Linear(Kernel):
    """Linear functions through the origin with independent slopes.

    k(x, z) = outputscale * sum(x * z / lengthscale**2)

    One lengthscale shared by all dimensions does what outputscale does: freeze one
    of the two before training.
    """

    lengthscale = Positive(per_dimension=True)
    outputscale = Positive()

    def __init__(
        self,
        lengthscale: Value = 1.0,
        outputscale: Value = 1.0,
        *,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(lengthscale=lengthscale, outputscale=outputscale, active_dims=active_dims)

    def features(self, X: Tensor) -> Tensor:
        """The points whose inner products are taken: active columns / lengthscale."""
        return self.select(X) / self.lengthscale.to(X)

    def evaluate(self, X: Tensor, Z: Tensor) -> Tensor:
        return self.outputscale.to(X) * (self.features(X) @ self.features(Z).mT)

    def diagonal(self, X: Tensor) -> Tensor:
        return self.outputscale.to(X) * self.features(X).square().sum(dim=-1)
