"""How fast a device is at each part of a fit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """Seconds per unit of work, on one device.

    A pair is one evaluation of the kernel, which serves both triangles of K: a symmetric
    product of n points has n² / 2 of them.

    product, product_column: per pair, and in addition per pair and right-hand side.
    precise: per pair of a product in float64 with the few columns of the last solve.
    gradient: per pair, for all hyperparameters, at the columns of training.
    draw, setup: per n k², to choose k pivots and to make the preconditioner on them.
    gather: per n k m², what m neighbours add to making it. search: per n², to find them.
    apply: per n k t, a solve with the preconditioner.
    dense: per n³, an evaluation of the likelihood by Cholesky.
    link: bytes per second between devices. source: where these numbers come from.
    """

    product: float
    product_column: float
    precise: float
    gradient: float
    draw: float
    setup: float
    gather: float
    search: float
    apply: float
    dense: float
    link: float
    source: str
