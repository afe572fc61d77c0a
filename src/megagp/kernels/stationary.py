"""Kernels that depend on the distance between scaled points alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from megagp.kernels.hyperparameter import Positive, Value
from megagp.kernels.kernel import Kernel


class Stationary(Kernel):
    """Abstract: a function of the Euclidean distance between features.

    k(x, z) = outputscale * radial(r)
    r = norm((x - z) / lengthscale)

    lengthscale: one for all dimensions, or one for each (ARD).
    """

    stationary = True
    lengthscale = Positive(per_dimension=True)
    outputscale = Positive()

    def __init__(
        self,
        lengthscale: Value = 1.0,
        outputscale: Value = 1.0,
        *,
        active_dims: Sequence[int] | None = None,
        **hyperparameters: Value,
    ) -> None:
        super().__init__(
            lengthscale=lengthscale,
            outputscale=outputscale,
            active_dims=active_dims,
            **hyperparameters,
        )

    @abstractmethod
    def radial(self, r: Tensor) -> Tensor:
        """The kernel at distance r with outputscale 1, entry by entry; radial(0) = 1."""

    def features(self, X: Tensor) -> Tensor:
        """The points between which distance is measured: active columns / lengthscale."""
        return self.select(X) / self.lengthscale.to(X)

    def evaluate(self, X: Tensor, Z: Tensor) -> Tensor:
        # Differences, not |x|^2 + |z|^2 - 2 x.z: that cancels for close points.
        # cdist also has gradient 0 where r = 0, which sqrt of a sum has not.
        r = torch.cdist(
            self.features(X), self.features(Z), compute_mode="donot_use_mm_for_euclid_dist"
        )
        # An r whose square overflows float32 would make 0 * inf of a vanishing kernel.
        return self.outputscale.to(X) * self.radial(r.clamp(max=1e18))

    def diagonal(self, X: Tensor) -> Tensor:
        return self.outputscale.to(X).expand(len(X))
