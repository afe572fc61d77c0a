"""A power law through points: a line on log axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class PowerLaw(NamedTuple):
    """y = factor · x^slope."""

    slope: float
    factor: float

    def __call__(self, x: float) -> float:
        return self.factor * math.pow(x, self.slope)


def fit(x: Sequence[float], y: Sequence[float]) -> PowerLaw | None:
    """Least squares of log y on log x; None without two different x above zero."""
    points = [
        (math.log(a), math.log(b))
        for a, b in zip(x, y, strict=True)
        if a > 0 and b > 0 and math.isfinite(a) and math.isfinite(b)
    ]
    if len({a for a, _ in points}) < 2:
        return None
    mean_x = sum(a for a, _ in points) / len(points)
    mean_y = sum(b for _, b in points) / len(points)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in points) / sum(
        (a - mean_x) ** 2 for a, _ in points
    )
    return PowerLaw(slope, math.exp(mean_y - slope * mean_x))
