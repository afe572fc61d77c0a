"""Effects of places: parts of the function that no other place shares.

g_i ~ N(0, t_i) is added to f at place i, whoever observes it, so that K̂ has d_i = t_i + e_i on its
diagonal beyond K, e_i the noise of the observation y_i. Given f, g_i follows from y_i alone,

g_i | f, y ~ N(t_i / d_i (y_i - f_i), t_i e_i / d_i),

and at other places it is as before, N(0, t). With the posterior of f, C its covariance, and since
K̂ v = y - H β, this leaves

E (f + g)_i = E f_i + t_i v_i,  cov (f + g) = S C S + diag(t s),  s_i = e_i / d_i, 1 elsewhere.

Rows of one place share its effect.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from megagp.equal_rows import EqualRows, distinct
from megagp.posterior.error_scale import Scale


@dataclass(frozen=True)
class PlaceEffect:
    """From moments of f at m new points to those of f + g.

    effects: n, t; noise: n, d; weights: n x p, v; places: their X. place_variance: t at others,
    times `scale`.
    """

    effects: Tensor
    noise: Tensor
    weights: Tensor
    places: EqualRows
    place_variance: float
    scale: Scale | None

    def mean(self, mean: Tensor, X_new: Tensor) -> Tensor:
        """Of f + g, m x p."""
        place = self.places.find(X_new)
        effect = self.effects[place, None] * self.weights[place]
        return mean + torch.where(place[:, None] < 0, 0.0, effect)

    def variance(self, variance: Tensor, X_new: Tensor) -> Tensor:
        """Of f + g, m: from a bound on that of f, another."""
        left, effects = self._left(X_new)
        return left.square() * variance + effects

    def covariance(self, C: Tensor, X_new: Tensor) -> Tensor:
        """Of f + g, m x m."""
        left, effects = self._left(X_new)
        _, which = distinct(X_new)
        return left[:, None] * C * left + (which[:, None] == which) * effects

    def _left(self, X_new: Tensor) -> tuple[Tensor, Tensor]:
        """s, what observations leave unknown of effects, and t s."""
        place = self.places.find(X_new)
        elsewhere = torch.full((len(X_new),), self.place_variance, dtype=torch.float64)
        if self.scale is not None:
            elsewhere = elsewhere * self.scale.at(X_new)
        left = torch.where(place < 0, 1.0, 1 - self.effects[place] / self.noise[place])
        return left, left * torch.where(place < 0, elsewhere, self.effects[place])
