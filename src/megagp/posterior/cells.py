"""Training points in cells: compact groups of about equal size."""

from __future__ import annotations

import torch
from torch import Tensor

from megagp.neighbours import Neighbours

# Rounds of Lloyd's algorithm, where they take no more than so many distances each: cells that are
# rounder than boxes have fewer points at margins.
ROUNDS, MOST_DISTANCES = 8, 5 * 10**8
# Points that stand for a cell when the points near it are looked for, among so many times as many.
SPOKESMEN, WIDER = 64, 3


class Cells:
    """`points` (n x f) halved again and again across their widest column, then k-means from there.

    size: points per cell, on average. A new point belongs to the cell whose centre is nearest, so
    that where it lies says all, and the points it comes with nothing.
    Cost: O(n f log n), and O(n c f) for c cells or O(n log c) in few columns, once; O(c f) or
    O(log c) per new point.
    """

    def __init__(self, points: Tensor, size: int) -> None:
        count = max(1, -(-len(points) // max(1, size)))
        every = torch.arange(len(points), device=points.device)
        self._points = points
        self.members = _halve(points, every, count)
        self.centres = torch.stack([points[rows].mean(dim=0) for rows in self.members])
        self._search = Neighbours(self.centres)
        for _ in range(ROUNDS if len(points) * count <= MOST_DISTANCES else 0):
            self._move()

    def __len__(self) -> int:
        return len(self.members)

    def of(self, points: Tensor) -> Tensor:
        """The cell of each new point: t x f to t."""
        return self._search.nearest(points, 1)[:, 0]

    def near(self, cell: int, points: Tensor, search: Neighbours, m: int) -> Tensor:
        """m of `points`, those nearest to the members of a cell, all in all: indices.

        search: of `points`. A point counts the sum of exp(-3 (distance / h)²) over members, h the
        distance at which they have m / 8 others. Those nearest to the centre come first.
        """
        wider = search.nearest(self.centres[cell : cell + 1], WIDER * m)[0]
        rows = self.members[cell]
        every = max(1, len(rows) // SPOKESMEN)
        D = torch.cdist(self._points[rows[::every]], points[wider])
        if len(wider) <= m or not len(D):
            return wider[:m]
        h = D.kthvalue(max(1, m // 8), dim=1).values.median().clamp(min=1e-300)
        counts = torch.exp(-3 * (D / h).square()).sum(dim=0)
        # Stable: where counts are equal, those nearer to the centre.
        most = counts.sort(descending=True, stable=True).indices[:m]
        return wider[most.sort().values]

    def _move(self) -> None:
        """Every point to the nearest centre, then every centre to the mean of its points."""
        cell, order = self.of(self._points).sort(stable=True)
        counts = torch.bincount(cell, minlength=len(self))
        self.members = list(torch.split(order, counts.tolist()))
        sums = torch.zeros_like(self.centres).index_add_(0, cell, self._points[order])
        filled = counts > 0
        self.centres[filled] = sums[filled] / counts[filled, None]
        self._search = Neighbours(self.centres)


def _halve(points: Tensor, rows: Tensor, count: int) -> list[Tensor]:
    """`rows` in `count` parts that differ by at most one in size."""
    if count == 1:
        return [rows]
    values = points[rows]
    widest = int((values.amax(dim=0) - values.amin(dim=0)).argmax())
    # Stable: points that agree in the column stay in order, whatever sorts them.
    rows = rows[values[:, widest].argsort(stable=True)]
    left = count // 2
    cut = len(rows) * left // count
    return _halve(points, rows[:cut], left) + _halve(points, rows[cut:], count - left)
