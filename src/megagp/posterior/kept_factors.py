"""Variances from factors that serve many new points, in the native core.

S is made in float64 and factorised in float32, L Lᵀ = S + E. With y = L⁻¹c, in float64, and
w = L⁻ᵀy

    k(x, x) - |b|² - |y|² + ε |w|²  >=  the variance given the pivots and N    for any ε >= |E|,

which takes no product with S. ε is measured when a factor is made: twice the Frobenius norm of
E, as seen by random vectors. A cell where it adds more than TOLERANCE to the variances of the
training points at its centre is factorised in float64. New points have no say in that, so what
one gets does not depend on those that came before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megagp.engines.native import kept_factor_size, kept_variance, make_kept
from megagp.neighbours import chunks
from megagp.posterior.cell_factors import (
    GOOD,
    JITTERS,
    ROUGH,
    CellFactors,
    New,
    Run,
    as_array,
    not_positive,
    runs_of,
    scale_of,
)

# What float32 may add to a variance, as a share of it, noise included.
TOLERANCE = 5e-3
# Factors that are not kept: as many at a time as take no more bytes than this.
PASSING = 64 * 2**20

Factor = NDArray[Any]


class KeptFactors(CellFactors):
    """See above; kept first come first served, while the budget has room."""

    def variances(self, new: New, cell: Tensor) -> Tensor:
        out = torch.empty_like(new.prior)
        runs = runs_of(cell)
        kept = [run for run in runs if run[0] in self._kept]
        fresh = [run for run in runs if run[0] not in self._kept]
        passing = [fresh[i] for i in chunks(len(fresh), self._at_once())]
        for part in self._parts(kept) + passing:
            factors = self._get([c for c, _ in part])
            for dtype in (np.float32, np.float64):
                same = [run for run in part if factors[run[0]].dtype == dtype]
                self._by_kept(same, factors, new, out)
            del factors  # before the next are made
        return out

    def make(self, cells: Sequence[int]) -> None:
        for part in chunks(len(cells), self._at_once()):
            if self._size() > self._budget:  # some took more than they should, in float64
                return
            self._get(cells[part])

    def _size(self) -> int:
        return 4 * kept_factor_size(len(self._nearest(0)), True)

    def _at_once(self) -> int:
        return max(torch.get_num_threads(), PASSING // self._size())

    def _get(self, cells: Sequence[int]) -> dict[int, Factor]:
        """The factors of cells: those that are kept, and new ones, which are if there is room."""
        found = {c: self._kept[c] for c in cells if c in self._kept}
        left = [c for c in cells if c not in found]
        scale = scale_of(self._kernel, self._X)
        tries = [(True, 0.0), *((False, jitter * scale) for jitter in JITTERS)]
        for single, jitter in tries:
            made = self._make(left, single, jitter)
            for c, factor in made.items():
                self._keep(c, factor, factor.nbytes)
            found |= made
            left = [c for c in left if c not in made]
        if left:
            raise not_positive()
        return found

    def _make(self, cells: list[int], single: bool, jitter: float) -> dict[int, Factor]:
        """Factors of the cells that this precision serves."""
        if not cells:
            return {}
        N = [self._nearest(c) for c in cells]
        rows, F, where = self._rows_of_F(torch.cat(N))
        dtype = torch.float32 if single else torch.float64
        # By torch, whose arrays start where vectors may.
        factors = [
            as_array(torch.empty(kept_factor_size(len(near), single), dtype=dtype)) for near in N
        ]
        quality = make_kept(
            single,
            self._components(rows, self._X[:0], self._trend[:0]),
            as_array(self._noise[rows]),
            as_array(F),
            [as_array(part) for part in torch.split(where, [len(near) for near in N])],
            factors,
            jitter,
            TOLERANCE,
            torch.get_num_threads(),
            self._instruction_set,
        )
        least = GOOD if single else ROUGH
        return {c: f for c, f, q in zip(cells, factors, quality, strict=True) if q >= least}

    def _by_kept(self, runs: list[Run], factors: dict[int, Factor], new: New, out: Tensor) -> None:
        """Writes the variances of new points whose cells have factors of one precision."""
        if not runs:
            return
        at, given = self._given(runs, new)
        found = torch.empty(len(at), dtype=torch.float64)
        kept_variance(
            factors[runs[0][0]].dtype == np.float32,
            *given,
            [factors[c] for c, _ in runs],
            found.numpy(),
            torch.get_num_threads(),
            self._instruction_set,
        )
        out[at] = found
