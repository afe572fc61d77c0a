"""For every point the nearest among those that come before it in a random order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

# Up to this many columns a tree is quicker than every distance.
TREE_MAX_D = 4
# Neighbours looked at for each that is kept: at least half of them come before the point.
LOOK = 3


@dataclass(frozen=True)
class Predecessors:
    """order: the points from first to last. nearest: n x m, nearest first, -1 where none is left.

    Every entry of row i comes before i in the order.
    """

    order: NDArray[np.int64]
    nearest: NDArray[np.int64]


def nearest_predecessors(
    points: Tensor, m: int, without: Tensor, rng: np.random.Generator
) -> Predecessors:
    """Up to m predecessors of each of the points (n x f) in a random order.

    without: indices of points that come first, have no predecessors and are nobody's.
    The points of the second half of the order are looked up among all, those of the second
    quarter among the first half, and so on: O(n²) distances in all.
    """
    n = len(points)
    alone = np.zeros(n, dtype=bool)
    alone[without.numpy()] = True
    rest = rng.permutation(np.flatnonzero(~alone))
    order = np.concatenate([np.flatnonzero(alone), rest])
    nearest = np.full((n, m), -1, dtype=np.int64)
    # Centred in float64 before the cast: an offset would use up the digits of float32.
    X = (points - points.mean(0)).float().numpy()[rest]
    last = len(rest)
    while last > 1 and m > 0:
        first = last // 2 if last > 4 * LOOK * m else 0
        found = _before(X[:last], first, m)
        nearest[rest[first:last]] = np.where(found >= 0, rest[found], -1)
        last = first
    return Predecessors(order, nearest)


def _before(X: NDArray[np.float32], first: int, m: int) -> NDArray[np.int64]:
    """For rows from `first` on: up to m of the nearest rows above each, -1 where none is left."""
    n = len(X)
    look = min(n, LOOK * m + 1) if first else n
    way = "kd_tree" if X.shape[1] <= TREE_MAX_D else "brute"
    search = NearestNeighbors(n_neighbors=look, algorithm=way).fit(X)
    found = search.kneighbors(X[first:], return_distance=False)
    late = found >= np.arange(first, n)[:, None]
    # A stable sort moves those that come later behind, and leaves the others by distance.
    front = np.argsort(late, axis=1, kind="stable")[:, :m]
    kept = np.take_along_axis(np.where(late, -1, found), front, axis=1)
    out = np.full((n - first, m), -1, dtype=np.int64)
    out[:, : kept.shape[1]] = kept
    return out
