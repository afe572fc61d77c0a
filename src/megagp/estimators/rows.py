"""Training rows, the places that their inputs are, and what is known of their noise."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from megagp.distributed import Ranks
from megagp.kernels import Hyperparameter
from megagp.training import PlaceEffects, PlaceNoise, Places, place_noise


class Rows(NamedTuple):
    """Y: N x p; noise_scale: N; at: the places that their inputs are; own: the noise of those."""

    Y: Tensor
    noise_scale: Tensor
    at: Places
    own: PlaceNoise | None = None

    def scaled(self, factor: Tensor) -> Rows:
        """With the noise of each of n places multiplied."""
        again = self.at.replicates
        at = self.at._replace(
            noise_scale=self.at.noise_scale * factor,
            replicates=None if again is None else again.scaled(factor),
        )
        return self._replace(noise_scale=self.noise_scale * factor[self.at.place], at=at)


class Noisy(NamedTuple):
    """Rows, and where training starts for their noise variance and for effects of places.

    effects: None where places have none.
    """

    rows: Rows
    noise: Hyperparameter
    effects: PlaceEffects | None = None

    @classmethod
    def of_places(cls, rows: Rows, begin: float, floor: float, ranks: Ranks) -> Noisy:
        """The rows with the noise of their places, if that differs.

        The noise variance is then frozen: rows of one place tell it. What places differ by beyond
        that, and what K explains, is for the effects of places. Otherwise it begins at `begin`.
        floor: what no noise variance is below.
        """
        noise = Hyperparameter("noise_variance", begin)
        if rows.at.replicates is None:
            return cls(rows, noise)

        def found() -> tuple[dict[str, Any], dict[str, Tensor]]:
            own = place_noise(rows.at, rows.Y, rows.noise_scale, floor)
            if own is None:
                return {}, {}
            return {"typical": own.typical}, {"factor": own.factor, "left_out": own.left_out}

        header, tensors = ranks.from_first(found)
        if not tensors:
            return cls(rows, noise)
        own = PlaceNoise(header["typical"], tensors["factor"], tensors["left_out"])
        variance = Hyperparameter("place_variance", begin)
        noise.set(own.typical)
        noise.frozen = True
        effects = PlaceEffects(variance, torch.ones_like(own.factor))
        return cls(rows.scaled(own.factor)._replace(own=own), noise, effects)

    def varied(
        self, given: Rows, factor: Tensor, typical: float, floor: float, ranks: Ranks
    ) -> Noisy:
        """From here on, for rows as given whose variances are multiplied by typical * factor.

        factor: n, with a geometric mean of 1. What no other place tells, noise and effects alike,
        is multiplied.
        """
        rows, begin = given.scaled(factor), max(typical * float(self.noise.value), floor)
        if self.effects is None:
            return Noisy(rows, Hyperparameter("noise_variance", begin))
        found = Noisy.of_places(rows, begin, floor, ranks)
        if found.effects is None:
            return found
        effects = self.effects.copy().scaled(factor)
        effects.variance.set(typical * effects.variance.value)
        return found._replace(effects=effects)
