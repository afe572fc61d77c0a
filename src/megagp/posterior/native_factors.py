"""Variances by cell in the native core: factors in float32, the bound in float64.

A float32 factor of S gives weights w ≈ S⁻¹c; with their residual r = c - S w, in float64,

    k(x, x) - |b|² - wᵀ(c + r)  =  the variance given the pivots and N  +  rᵀ S⁻¹ r,

so that what float32 does to w can only raise the bound, and by its square. A cell where it
raises it by more than TOLERANCE is factorised in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megagp.engines.native import component_inputs, joint_factor_size, joint_variance
from megagp.kernels import Kernel
from megagp.neighbours import chunks
from megagp.posterior.cell_factors import (
    JITTERS,
    CellFactors,
    GetRows,
    Nearest,
    not_positive,
    runs_of,
)

# What float32 may add to a variance, as a share of it, noise included.
TOLERANCE = 1e-3
# Factors that are not kept: as many at a time as take no more bytes than this.
PASSING = 64 * 2**20
GOOD, ROUGH = 2, 1  # JointQuality of native/joint_ops.h

Run = tuple[int, slice]  # a cell and where its new points are


class NativeFactors(CellFactors):
    """See above; for kernels that the native engine supports, on the CPU.

    instruction_set: as for NativeEngine; empty for the best the machine has.
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Tensor,
        noise: Tensor,
        rows_of_F: GetRows,
        nearest: Nearest,
        budget: int,
        instruction_set: str = "",
    ) -> None:
        super().__init__(kernel, X, noise, rows_of_F, nearest, budget)
        terms = component_inputs(kernel, X[:0], X[:0])
        self._scale = sum(outputscale for _, outputscale, *_ in terms)
        self._instruction_set = instruction_set
        self._double: set[int] = set()

    def variances(self, x: Tensor, prior: Tensor, B: Tensor, cell: Tensor) -> Tensor:
        out = torch.empty_like(prior)
        runs = runs_of(cell)
        single = [run for run in runs if run[0] not in self._double]
        missed = self._all(single, x, prior, B, out, single=True, jitter=0.0)
        self._double |= {c for c, _ in missed}
        left = [run for run in runs if run[0] in self._double]
        for jitter in JITTERS:
            left = self._all(left, x, prior, B, out, single=False, jitter=jitter * self._scale)
        if left:
            raise not_positive()
        return out

    def _all(
        self,
        runs: list[Run],
        x: Tensor,
        prior: Tensor,
        B: Tensor,
        out: Tensor,
        *,
        single: bool,
        jitter: float,
    ) -> list[Run]:
        """Writes what can be had in this precision; returns the cells that it does not serve."""
        if not runs:
            return []
        size = (4 if single else 8) * joint_factor_size(len(self._nearest(runs[0][0])), single)
        step = max(torch.get_num_threads(), PASSING // size)
        kept = [run for run in runs if run[0] in self._kept]
        fresh = [run for run in runs if run[0] not in self._kept]
        missed = []
        for part in [kept] * bool(kept) + [fresh[i] for i in chunks(len(fresh), step)]:
            rows = torch.cat([torch.arange(at.start, at.stop) for _, at in part])
            found = torch.empty(len(rows), dtype=torch.float64)
            quality = self._call(part, x[rows], prior[rows], B[rows], found, single, jitter)
            out[rows] = found
            least = GOOD if single else ROUGH
            missed += [run for run, q in zip(part, quality, strict=True) if q < least]
        return missed

    def _call(
        self,
        runs: list[Run],
        x: Tensor,
        prior: Tensor,
        B: Tensor,
        out: Tensor,
        single: bool,
        jitter: float,
    ) -> list[int]:
        """One call of the core; factors that are good and for which there is room are kept."""
        N = [self._nearest(c) for c, _ in runs]
        rows, F, where = self._rows_of_F(torch.cat(N))
        made = [c in self._kept for c, _ in runs]
        factors = [
            self._kept[c] if old else _empty(joint_factor_size(len(near), single), single)
            for (c, _), near, old in zip(runs, N, made, strict=True)
        ]
        quality = joint_variance(
            single,
            component_inputs(self._kernel, self._X[rows], x),
            _array(self._noise[rows]),
            _array(F),
            _array(prior),
            _array(B),
            np.cumsum([at.stop - at.start for _, at in runs]),
            [_array(part) for part in torch.split(where, [len(near) for near in N])],
            factors,
            made,
            jitter,
            TOLERANCE,
            out.numpy(),
            torch.get_num_threads(),
            self._instruction_set,
        )
        for (c, _), factor, q, old in zip(runs, factors, quality, made, strict=True):
            if not old and q >= (GOOD if single else ROUGH):
                self._keep(c, factor, factor.nbytes)
        return quality


def _empty(size: int, single: bool) -> NDArray[Any]:
    """Made by torch, whose arrays start where vectors may."""
    return _array(torch.empty(size, dtype=torch.float32 if single else torch.float64))


def _array(T: Tensor) -> NDArray[Any]:
    found: NDArray[Any] = T.detach().contiguous().numpy()
    return found
