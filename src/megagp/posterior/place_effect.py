"""Effects of places: parts of the function that no other place shares.

g_i ~ N(0, τ²) is added to f at place i, whoever observes it, and to the noise e_i of its
observation y_i, so that K̂ has d_i = τ² + e_i on its diagonal beyond K. Given f, g_i follows from
y_i alone,

g_i | f, y ~ N(τ² / d_i (y_i - f_i), τ² e_i / d_i),

and elsewhere g ~ N(0, τ²). With the posterior of f, C its covariance, this leaves

E (f + g)_i = E f_i + τ² v_i,  cov (f + g) = S C S + diag(τ² s),  s_i = e_i / d_i, 1 elsewhere,

since K̂ v = y - H β. Rows of one place share its effect.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from megagp.equal_rows import EqualRows, distinct


@dataclass(frozen=True)
class PlaceEffect:
    """From moments of f at m new points to those of f + g.

    place_variance: τ². noise: n, d_i; weights: n x p, v; places: their X.
    """

    place_variance: float
    noise: Tensor
    weights: Tensor
    places: EqualRows

    def mean(self, mean: Tensor, X_new: Tensor) -> Tensor:
        """Of f + g, m x p."""
        place = self.places.find(X_new)
        effect = self.place_variance * self.weights[place]
        return mean + torch.where(place[:, None] < 0, 0.0, effect)

    def variance(self, variance: Tensor, X_new: Tensor) -> Tensor:
        """Of f + g, m: from a bound on that of f, another."""
        left = self._left(X_new)
        return left.square() * variance + self.place_variance * left

    def covariance(self, C: Tensor, X_new: Tensor) -> Tensor:
        """Of f + g, m x m."""
        left = self._left(X_new)
        _, which = distinct(X_new)
        shared = (which[:, None] == which) * (self.place_variance * left)
        return left[:, None] * C * left + shared

    def _left(self, X_new: Tensor) -> Tensor:
        """s: the share of g that observations leave unknown."""
        place = self.places.find(X_new)
        return torch.where(place < 0, 1.0, 1 - self.place_variance / self.noise[place])
