"""The hyperparameters that training may move, as one vector of logarithms."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megagp.kernels import Hyperparameter, Kernel, Periodic, Stationary

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

# On whitened data. Wide: they stop an optimiser that has run away, not one that searches.
BOUNDS = {
    "lengthscale": (1e-3, 1e4),
    "outputscale": (1e-4, 1e4),
    "noise_variance": (1e-8, 1e2),
    "place_variance": (1e-8, 1e2),
}
OTHERWISE = (1e-3, 1e3)
# Where there is no noise the likelihood rises slowly along a ridge of ever larger outputscale and
# lengthscale, until entries of K rounded to float32 are worse than the noise variance. So the
# outputscale stays below the noise variance times this.
LARGEST_RATIO = 1e6


def _parts(kernel: Kernel) -> list[Kernel]:
    """Those of sums and products, or the kernel itself."""
    return [p for part in getattr(kernel, "parts", ()) for p in _parts(part)] or [kernel]


class Parameters:
    """θ = the logarithms of the free hyperparameters of a kernel and of the noise variance.

    noise_floor: lower bound on the noise variance. place: the variance of effects of places, if
    there are any.
    """

    def __init__(
        self,
        kernel: Kernel,
        noise: Hyperparameter,
        noise_floor: float,
        place: Hyperparameter | None = None,
    ) -> None:
        named = {**kernel.hyperparameters(), "noise_variance": noise}
        if place is not None:
            named["place_variance"] = place
        self.names = {name: h for name, h in named.items() if not h.frozen}
        # Parts of a kernel may share one hyperparameter: it has two names and one place.
        self.own = list({id(h): h for h in self.names.values()}.values())
        lower, upper = [], []
        for h in self.own:
            low, high = BOUNDS.get(h.name, OTHERWISE)
            if h is noise:
                low = noise_floor
            elif h.name == "outputscale" and place is not None and noise.frozen:
                high = min(high, float(noise.value) * LARGEST_RATIO)
            lower.append(np.full(h.raw.numel(), np.log(low)))
            upper.append(np.full(h.raw.numel(), np.log(high)))
        self.lower = np.concatenate(lower) if lower else np.zeros(0)
        self.upper = np.concatenate(upper) if upper else np.zeros(0)
        owner = [h for h in self.own for _ in range(h.raw.numel())]
        self._is_outputscale = np.array([h.name == "outputscale" for h in owner], dtype=bool)
        self._columns = {
            id(part.hyperparameters()["lengthscale"]): part.active_dims
            for part in _parts(kernel)
            if isinstance(part, Stationary) and not isinstance(part, Periodic)
        }
        self._noise_at = next((i for i, h in enumerate(owner) if h is noise), None)

    def get(self) -> Vector:
        parts = [h.raw.detach().reshape(-1).numpy() for h in self.own]
        return np.concatenate(parts) if parts else np.zeros(0)

    def set(self, theta: Vector) -> None:
        start = 0
        with torch.no_grad():
            for h in self.own:
                part = theta[start : start + h.raw.numel()]
                h.raw.copy_(torch.from_numpy(part.copy()).reshape(h.raw.shape))
                start += h.raw.numel()

    def per_input(self, d: int) -> list[tuple[slice, list[int]]]:
        """Where in θ lengthscales are that belong to one of d inputs each, and to which."""
        found, start = [], 0
        for h in self.own:
            count = h.raw.numel()
            if id(h) in self._columns and count > 1:
                columns = self._columns[id(h)] or range(d)
                found.append((slice(start, start + count), list(columns)))
            start += count
        return found

    def limits(self, theta: Vector) -> tuple[Vector, Vector]:
        """Bounds for the neighbourhood of θ: the outputscale's depends on the noise variance."""
        if self._noise_at is None:
            return self.lower, self.upper
        noise = max(theta[self._noise_at], self.lower[self._noise_at])
        ratio = np.where(self._is_outputscale, noise + np.log(LARGEST_RATIO), np.inf)
        return self.lower, np.minimum(self.upper, np.maximum(ratio, self.lower))

    def clip(self, theta: Vector) -> Vector:
        boxed = np.clip(theta, self.lower, self.upper)
        return np.clip(boxed, *self.limits(boxed))

    def box(self, theta: Vector) -> tuple[Matrix, Vector, Vector]:
        """Coordinates of steps from θ in which the bounds are a box: T, lower, upper.

        θ + T u is within them for lower <= u <= upper. An outputscale whose largest ratio to the
        noise variance is nearer than its own bounds is counted from that, up and down with it, and
        the latter are left to `clip`.
        """
        T = np.eye(len(theta))
        lower, upper = self.lower - theta, self.limits(theta)[1] - theta
        if self._noise_at is not None:
            tied = self._is_outputscale & (upper < self.upper - theta)
            T[tied, self._noise_at] = 1.0
            lower[tied] = -np.inf
        return T, np.minimum(lower, 0.0), np.maximum(upper, 0.0)

    def gather(self, gradient: Mapping[str, Tensor]) -> Vector:
        """Derivatives by name (and by logarithm) as one vector."""
        total = {id(h): torch.zeros_like(h.raw.detach()).reshape(-1) for h in self.own}
        for name, h in self.names.items():
            total[id(h)] += gradient[name].reshape(-1)
        parts = [total[id(h)].numpy() for h in self.own]
        return np.concatenate(parts) if parts else np.zeros(0)
