"""For every point the nearest among those that come before it in a random order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from megagp.distributed import ALONE, Ranks

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
    points: Tensor, m: int, without: Tensor, rng: np.random.Generator, ranks: Ranks = ALONE
) -> Predecessors:
    """Up to m predecessors of each of the points (n x f) in a random order.

    without: indices of points that come first, have no predecessors and are nobody's.
    The points of the second half of the order are looked up among all, those of the second
    quarter among the first half, and so on: O(n²) distances in all, divided by the ranks.
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
        own = ranks.rows(last - first)
        part = _before(X[:last], slice(first + own.start, first + own.stop), m, first == 0)
        found = ranks.gather(torch.from_numpy(part), last - first).numpy()
        nearest[rest[first:last]] = np.where(found >= 0, rest[found], -1)
        last = first
    return Predecessors(order, nearest)


def _before(X: NDArray[np.float32], rows: slice, m: int, everywhere: bool) -> NDArray[np.int64]:
    """Up to m of the nearest rows above each of `rows`, -1 where none is left.

    everywhere: looked for among all rows of X, since few may be above.
    """
    n, count = len(X), rows.stop - rows.start
    out = np.full((count, m), -1, dtype=np.int64)
    if not count:
        return out
    look = n if everywhere else min(n, LOOK * m + 1)
    way = "kd_tree" if X.shape[1] <= TREE_MAX_D else "brute"
    search = NearestNeighbors(n_neighbors=look, algorithm=way).fit(X)
    found = search.kneighbors(X[rows], return_distance=False)
    late = found >= np.arange(rows.start, rows.stop)[:, None]
    # A stable sort moves those that come later behind, and leaves the others by distance.
    front = np.argsort(late, axis=1, kind="stable")[:, :m]
    kept = np.take_along_axis(np.where(late, -1, found), front, axis=1)
    out[:, : kept.shape[1]] = kept
    return out
