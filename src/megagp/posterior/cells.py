"""Training points in cells: compact groups of about equal size."""

from __future__ import annotations

import torch
from torch import Tensor

from megagp.neighbours import Neighbours


class Cells:
    """`points` (n x f) halved again and again across their widest column, and the cells' centres.

    size: points per cell, at most. A new point belongs to the cell whose centre is nearest, so
    that where it lies says all, and the points it comes with nothing.
    Cost: O(n f log n) once, O(c f) per new point and c cells, or O(log c) in few columns.
    """

    def __init__(self, points: Tensor, size: int) -> None:
        count = max(1, -(-len(points) // max(1, size)))
        every = torch.arange(len(points), device=points.device)
        self.members = _halve(points, every, count)
        self.centres = torch.stack([points[rows].mean(dim=0) for rows in self.members])
        self._search = Neighbours(self.centres)

    def __len__(self) -> int:
        return len(self.members)

    def of(self, points: Tensor) -> Tensor:
        """The cell of each new point: t x f to t."""
        return self._search.nearest(points, 1)[:, 0]


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
