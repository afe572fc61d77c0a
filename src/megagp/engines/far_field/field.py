"""K V with the far field in polynomials: what a component of a kernel gets prepared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from megagp.engines.far_field.tables import DEGREE, Profile, level_tables

if TYPE_CHECKING:
    from megagp._native import FarPlan

MAX_DIMENSIONS = max(DEGREE)
# By dimension: cells of more points can be split, and pairs of cells with more entries of K are.
LEAF = {1: 16, 2: 32, 3: 32}
DIRECT = {1: 64.0**2, 2: 128.0**2, 3: 300.0**2}
MAX_LEVEL = 20
MAX_EXTENT = 1e6  # lengthscales: beyond, float32 coordinates are too coarse for cells

# What a step costs, in the units of a multiply-add, measured (AVX-512, d = 1 to 3, t = 1 to 16).
ENTRY_COST, COLUMN_COST = 25.0, 2.75  # an entry of K, and its use for one right-hand side
BLOCK_COST = 1.5  # entries of small blocks against those of tiles
TRANSLATE_COST, POINT_COST, CELL_COST = 4.0, 8.0, 60.0  # for each right-hand side


@dataclass(frozen=True)
class FarStatistics:
    """What the far field does with the n^2 entries of K, and the bounds on what that costs.

    near, culled: shares of the entries that are evaluated, and left out; the rest goes far.
    error: of an entry of K. bound, culling_bound: of the spectral norm of all errors together.
    """

    near: float
    culled: float
    culling_bound: float
    error: float
    bound: float


class FarField:
    """k(X, X) of one stationary kernel in at most three dimensions.

    core: the native FarPlan. family: the kernel's number in native/ops.h.
    F: n x d features: distance is Euclidean, in lengthscales.
    cull_tolerance: bound on the spectral norm of what may be left out, 0 for nothing.
    """

    def __init__(
        self,
        core: type[FarPlan],
        profile: Profile,
        family: int,
        outputscale: float,
        F: NDArray[np.float64],
        cull_tolerance: float,
        instruction_set: str,
    ) -> None:
        self._n, d = F.shape
        low, high = F.min(axis=0), F.max(axis=0)
        side = _side(float((high - low).max()))
        origin = [*((low + high) / 2 - side / 2), 0.0, 0.0][:3]
        self._plan = core(
            family,
            outputscale,
            profile.alpha,
            F,
            origin,
            side,
            MAX_LEVEL,
            LEAF[d],
            DIRECT[d],
            instruction_set,
        )
        least = cull_tolerance / self._n / outputscale
        cutoff = _reach(profile, least)
        levels = level_tables(profile, d, side, self._plan.depth(), cutoff)
        tables = [(t.offsets, t.errors, t.left, t.right) for t in levels]
        self._plan.link(DEGREE[d], tables, cutoff, least)
        evaluations, translations, cells, near, culled, *bounds = self._plan.statistics()
        self._evaluations: float = evaluations
        terms = math.comb(DEGREE[d] + d, d)
        self._column_cost: float = TRANSLATE_COST * translations + terms * (
            POINT_COST * self._n + CELL_COST * cells
        )
        self.statistics = FarStatistics(near / self._n**2, culled / self._n**2, *bounds)

    def cost(self, t: int) -> float:
        """An estimate of the work of a product with t right-hand sides."""
        entries = BLOCK_COST * (ENTRY_COST + COLUMN_COST * t) * self._evaluations
        return entries + t * self._column_cost

    def matmul(
        self,
        v: NDArray[np.float64],
        out: NDArray[np.float64],
        threads: int,
        interval: tuple[int, int],
    ) -> None:
        """out = K v for the pairs whose places are in this interval (Share.interval)."""
        self._plan.matmul(v, out, threads, *interval)


def direct_cost(n: int, culled_fraction: float, t: int) -> float:
    """What evaluating the entries costs, in the units of FarField.cost."""
    return (ENTRY_COST + COLUMN_COST * t) * n**2 / 2 * (1 - culled_fraction)


def _side(extent: float) -> float:
    """The least side of 1, sqrt(2), 2, ... lengthscales, or the like, that covers the points."""
    if extent == 0:
        return 1.0
    return float(2.0 ** (math.ceil(2 * math.log2(extent) + 1e-9) / 2))


def _reach(profile: Profile, level: float) -> float:
    """A distance from which the kernel is at most `level`; infinite if there is none."""
    k = profile.radial()
    distances = np.concatenate([np.linspace(0, 60, 6001), np.geomspace(61, 1e9, 2000)])
    small = np.flatnonzero(k(distances) <= level)
    return float(distances[small[0]]) if len(small) and level > 0 else math.inf
