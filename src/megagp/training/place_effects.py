"""Parts of the function that no other place shares: g_i ~ N(0, τ² s_i) at place i."""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

from torch import Tensor

from megagp.kernels import Hyperparameter


class PlaceEffects(NamedTuple):
    """variance: τ². scale: s, n."""

    variance: Hyperparameter
    scale: Tensor

    def at(self, places: Tensor | slice) -> PlaceEffects:
        return self._replace(scale=self.scale[places])

    def scaled(self, factor: Tensor) -> PlaceEffects:
        return self._replace(scale=self.scale * factor)

    def copy(self) -> PlaceEffects:
        """With a τ² of its own."""
        return self._replace(variance=copy(self.variance))

    def variances(self) -> Tensor:
        """τ² s, n."""
        return self.variance.value.detach() * self.scale
