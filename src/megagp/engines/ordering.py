"""An order of the points in which neighbours in space are neighbours in memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TILE = 256  # as in native/ops.h


def kd_order(points: NDArray[np.float64], tile: int = TILE) -> NDArray[np.int64]:
    """Indices that sort n points into boxes of `tile`, each as small as halving makes it.

    Splits at the median of the widest dimension until a tile is left, with every left part
    a whole number of tiles, so that the boxes are exactly the engine's tiles.
    Time O(n d log(n / tile)).
    """
    order = np.arange(len(points))
    pending = [(0, len(points))]
    while pending:
        start, stop = pending.pop()
        if stop - start <= tile:
            continue
        part = order[start:stop]
        box = points[part]
        widest = int(np.argmax(box.max(axis=0) - box.min(axis=0)))
        tiles = -(-(stop - start) // tile)
        left = tiles // 2 * tile
        order[start:stop] = part[np.argpartition(box[:, widest], left)]
        pending += [(start, start + left), (start + left, stop)]
    return order
