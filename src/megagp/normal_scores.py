"""Inputs by their ranks: columns whose values are spread like a normal variable's.

A kernel of distances treats a column with a few huge values badly: with one lengthscale either
the crowd is one point, or the far ones are alone. Ranks do not know how far away the far ones are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

# Values of a column at which its map is kept; straight lines in between.
KNOTS = 1000


@dataclass(frozen=True)
class NormalScores:
    """x -> Φ⁻¹(share of the values below x), scaled to variance 1, column by column.

    Equal values share the middle of their ranks. Between knots (q x d, the last one repeated
    in columns of fewer values) the map is linear; outside of all values it goes on with slope 1,
    that of whitened data, which X is: far points stay apart. A constant column becomes 0.
    """

    knots: Tensor
    scores: Tensor

    @classmethod
    def of(cls, X: Tensor) -> NormalScores:
        columns = [_map(column) for column in X.numpy().T]
        q = max(len(values) for values, _ in columns)
        knots, scores = np.empty((2, q, X.shape[1]))
        for j, (values, found) in enumerate(columns):
            knots[: len(values), j], knots[len(values) :, j] = values, values[-1]
            scores[: len(values), j], scores[len(values) :, j] = found, found[-1]
        return cls(torch.from_numpy(knots), torch.from_numpy(scores))

    def apply(self, X: Tensor) -> Tensor:
        found = torch.empty_like(X)
        for j in range(X.shape[1]):
            knots, scores = self.knots[:, j].numpy(), self.scores[:, j].numpy()
            inside = np.interp(X[:, j].numpy(), knots, scores)
            beyond = X[:, j] - X[:, j].clamp(float(knots[0]), float(knots[-1]))
            found[:, j] = torch.from_numpy(inside) + beyond
        return found


def _map(column: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Knots of a column, increasing, and their scores."""
    n = len(column)
    values, counts = np.unique(column, return_counts=True)
    scores = ndtri((np.cumsum(counts) - 0.5 * counts) / n)
    mean = counts @ scores / n
    spread = np.sqrt(counts @ (scores - mean) ** 2 / n)
    scores = (scores - mean) / (spread if spread > 0 else 1.0)
    if len(values) <= KNOTS:
        return values, scores
    # Evenly in ranks, with both ends.
    ranks = np.cumsum(counts) - counts
    wanted = np.linspace(0, ranks[-1], KNOTS)
    kept = np.unique(np.searchsorted(ranks, wanted))
    return values[kept], scores[kept]
