"""How noisy each place is, as the rows that share it tell.

Rows j of a place have y_j ~ N(f, S c_j), S the noise variance of the place. With w_j = 1 / c_j and
W = Σ w_j, the mean of the other rows is off by e_j = (y_j - ȳ) W / (W - w_j), so

t_j = w_j (W - w_j) / W e_j² = w_j (y_j - ȳ)² W / (W - w_j)

has the mean S, and the squares of the others about their own mean are q - t_j. From ν squares whose
sum is q,

S = (B + ½ q) / (A + ½ ν),

the inverse of the mean of 1 / S, if 1 / S is drawn from a gamma distribution of shape A and rate B.
A and B are those with which every t_j is best foretold from the other rows of its place, as the
square of a normal variable of variance S: what predictions are judged by. (Many places may show no
noise at all. A distribution of S under which that is likely has no mean.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from megagp.training.replicates import Places

# Fewer rows with others beside them say nothing about how noise differs.
FEWEST = 200
# Nats per value, and in all, that noise of each place's own must gain over one for all. By chance
# it gains about one.
GAIN, IN_ALL = 0.01, 5.0
# Where searches for A start, and how far they go: beyond that it is one noise for all.
SHAPES, SMALLEST, LARGEST = (0.1, 1.0, 10.0), 1e-4, 1e4


class PlaceNoise(NamedTuple):
    """typical: the noise variance σ² of a place with one row. Relative to it:

    factor: n, that of each place. left_out: N, that of each row's place as its other rows tell it.
    """

    typical: float
    factor: Tensor
    left_out: Tensor


@dataclass(frozen=True)
class Squares:
    """t_j, summed over p outputs, and q - t_j and ν of the rows that are to foretell it; N each.

    least: N, what S is at least.
    """

    own: Tensor
    others: Tensor
    further: Tensor
    least: Tensor
    p: int

    @classmethod
    def of(cls, at: Places, Y: Tensor, noise_scale: Tensor, least: float) -> Squares:
        """Those of N rows; zeros for rows alone at their place."""
        assert at.replicates is not None
        share = at.noise_scale[at.place] / noise_scale  # w_j / W
        q, p = at.replicates.squares[at.place], Y.shape[1]
        further = at.replicates.further[at.place]
        squares = (Y - at.Y[at.place]).square().sum(1) / noise_scale
        own = torch.where(further > 0, squares / (1 - share), 0.0)
        others, further = (q - own).clamp(min=0.0), (further - p).clamp(min=0.0)
        return cls(own, others, further, least / noise_scale, p)

    def beside(self, at: Places) -> Squares:
        """Those of rows that are not alone."""
        assert at.replicates is not None
        rows = at.replicates.further[at.place] > 0
        own, others, further, least = (
            part[rows] for part in (self.own, self.others, self.further, self.least)
        )
        return Squares(own, others, further, least, self.p)

    def foretold(self, A: float, B: float) -> Tensor:
        """S, N."""
        return _variance(A, B, self.others, self.further, self.least)

    def loss(self, S: Tensor) -> float:
        """Minus the log density of a value, up to a constant."""
        return 0.5 * float((S.log() + self.own / (self.p * S)).mean())


def place_noise(at: Places, Y: Tensor, noise_scale: Tensor, least: float) -> PlaceNoise | None:
    """The noise of places; None if one noise variance for all foretells rows as well.

    Y: N x p; noise_scale: N, c, the same for rows of a place. least: what no noise variance S c is
    below.
    """
    if at.replicates is None:
        return None
    squares = Squares.of(at, Y, noise_scale, least)
    prior = _prior(squares.beside(at))
    if prior is None:
        return None
    (A, B), again = prior, at.replicates
    typical = B / A
    factor = _variance(A, B, again.squares, again.further, squares.least[at.first]) / typical
    return PlaceNoise(typical, factor, squares.foretold(A, B) / typical)


def _prior(found: Squares) -> tuple[float, float] | None:
    """A and B."""
    if len(found.own) < FEWEST:
        return None
    least = float(found.least.min())
    common = max(float(found.own.mean()) / found.p, least)

    def prior(theta: NDArray[np.float64]) -> tuple[float, float]:
        A = math.exp(theta[0])
        return A, A * math.exp(theta[1])

    def loss(theta: NDArray[np.float64]) -> float:
        return found.loss(found.foretold(*prior(theta)))

    # The inverse of a mean of 1 / S is no larger than the mean of S.
    limits = [(math.log(SMALLEST), math.log(LARGEST)), (math.log(least), math.log(common) + 1e-9)]
    tried = [
        minimize(loss, [math.log(A), math.log(common)], method="Nelder-Mead", bounds=limits)
        for A in SHAPES
    ]
    best = min(tried, key=lambda result: float(result.fun))
    one = found.loss(found.least.clamp(min=common))
    worth = max(GAIN, IN_ALL / len(found.own))
    return prior(best.x) if best.fun < one - worth else None


def _variance(A: float, B: float, q: Tensor, further: Tensor, least: Tensor) -> Tensor:
    return ((B + 0.5 * q) / (A + 0.5 * further)).maximum(least)
