"""How good predictions are on points that were held out."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]


class Scores(NamedTuple):
    """In units of the target; nll is the mean of -log N(y | mean, std²)."""

    rmse: float
    nll: float
    coverage: float  # the share of y within the 95 % interval

    def __str__(self) -> str:
        return (
            f"RMSE {self.rmse:.4g}, NLL {self.nll:.4g}, "
            f"{100 * self.coverage:.1f} % within the 95 % interval"
        )


def score(y: Array, mean: Array, std: Array) -> Scores:
    """Over all entries of y; mean and std have its shape."""
    z = (y - mean) / std
    nll = np.mean(0.5 * z**2 + np.log(std)) + 0.5 * math.log(2 * math.pi)
    return Scores(
        float(np.sqrt(np.mean((y - mean) ** 2))),
        float(nll),
        float(coverage(z.reshape(-1), np.array([0.95]))[0]),
    )


def coverage(z: Array, nominal: Array) -> Array:
    """The share of errors z = (y - mean) / std within each central interval of a normal."""
    limit = np.array([NormalDist().inv_cdf(0.5 + p / 2) for p in nominal])
    share: Array = np.mean(np.abs(z)[:, None] <= limit, axis=0)
    return share
