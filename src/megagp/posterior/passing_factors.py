"""Variances from factors that serve once, in the native core: factors in float32, the bound in
float64.

A float32 factor of S gives weights w ≈ S⁻¹c; with their residual r = c - S w, in float64,

    k(x, x) - |b|² - wᵀ(c + r)  =  the variance given the pivots and N  +  rᵀ S⁻¹ r,

so that what float32 does to w can only raise the bound, and by its square. A cell where it
raises it by more than TOLERANCE is factorised in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megagp.engines.native import joint_variance
from megagp.posterior.cell_factors import (
    GOOD,
    JITTERS,
    ROUGH,
    CellFactors,
    New,
    Run,
    not_positive,
    runs_of,
    scale_of,
)

# What float32 may add to a variance, as a share of it, noise included.
TOLERANCE = 1e-3


class PassingFactors(CellFactors):
    """See above: nothing is kept, whatever the budget."""

    def variances(self, new: New, cell: Tensor) -> Tensor:
        out = torch.empty_like(new.prior)
        scale = scale_of(self._kernel, self._X)
        for part in self._parts(runs_of(cell)):
            left = self._call(part, new, out, single=True, jitter=0.0)
            for jitter in JITTERS:
                left = self._call(left, new, out, single=False, jitter=jitter * scale)
            if left:
                raise not_positive()
        return out

    def make(self, cells: Sequence[int]) -> None:
        """Nothing: they would be given up."""

    def _call(
        self, runs: list[Run], new: New, out: Tensor, *, single: bool, jitter: float
    ) -> list[Run]:
        """Writes what can be had in this precision; returns the cells that it does not serve."""
        if not runs:
            return []
        at, given = self._given(runs, new)
        found = torch.empty(len(at), dtype=torch.float64)
        quality = joint_variance(
            single,
            *given,
            jitter,
            TOLERANCE,
            found.numpy(),
            torch.get_num_threads(),
            self._instruction_set,
        )
        out[at] = found
        least = GOOD if single else ROUGH
        return [run for run, q in zip(runs, quality, strict=True) if q < least]
