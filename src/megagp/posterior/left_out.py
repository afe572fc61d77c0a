"""Training points predicted from all others, without another solve.

With s² = 1 / [K̂⁻¹]_ii, the variance of observation i given the others, and weights v = K̂⁻¹ (y - Hβ)
the prediction of y_i from the others is off by v_i s² (Rasmussen & Williams 2006, eq. 5.12), β held
fixed. Weights with a residual r are exact ones of y - r, so with them it is off by v_i s² + r_i.

s² comes from fewer points: pivots P and points N, those that are nearest to a cell and then those
of the cell that are left out. Of S = K̂_NN - K_NP K̂_PP⁻¹ K_PN = L Lᵀ the corner L_22 of L is enough:
that of S⁻¹ is (L_22 L_22ᵀ)⁻¹, and s² = 1 / [S⁻¹]_ii. What m neighbours leave falls about as 1 / m,
so what halving their number adds is taken off, unless they are all there are. Pivots are points
like all others: each half of the points rests on the pivots of the other half.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from megagp.kernels import Kernel
from megagp.neighbours import Neighbours, metric_features
from megagp.operator import KernelOperator
from megagp.posterior.cell_factors import JITTERS, not_positive
from megagp.posterior.cells import Cells

# Points near a cell, points in it, and cells that are looked at, of each half.
NEIGHBOURS, SIZE, CELLS = 2048, 256, 50


class LeftOut(NamedTuple):
    """n training points as indices, n x p errors of predictions from the others, n variances.

    The variances are those of observations.
    """

    rows: Tensor
    errors: Tensor
    variances: Tensor


def variances_left_out(
    X: Tensor, kernel: Kernel, noise: Tensor, pivots: Tensor, count: int, seed: int
) -> tuple[Tensor, Tensor]:
    """About `count` training points, or all, and the variance of each given others.

    X: n x d; noise: n; pivots: indices into X. Cost: O(m³ + m² k + m k²) for each cell.
    """
    generator = torch.Generator().manual_seed(seed)
    first = torch.zeros(len(X), dtype=torch.bool)
    first[torch.randperm(len(X), generator=generator)[: len(X) // 2]] = True
    halves = [
        _half(X, kernel, noise, pivots[~mine[pivots]], mine, count // 2, generator)
        for mine in (first, ~first)
    ]
    rows, variances = (torch.cat(parts) for parts in zip(*halves, strict=True))
    return rows, variances


@torch.no_grad()
def _half(
    X: Tensor,
    kernel: Kernel,
    noise: Tensor,
    pivots: Tensor,
    mine: Tensor,
    count: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Some of the points in `mine`, none of them a pivot, and their variances."""
    is_pivot = torch.zeros(len(X), dtype=torch.bool)
    is_pivot[pivots] = True
    rest = (~is_pivot).nonzero()[:, 0]
    features = metric_features(kernel, X[rest])
    cells, search = Cells(features, SIZE), Neighbours(features)
    C = _factor(_block(kernel, X[pivots], noise[pivots]))
    taken = torch.randperm(len(cells), generator=generator)[:CELLS].tolist()
    members = [rest[cells.members[cell]] for cell in taken]
    members = [rows[mine[rows]] for rows in members]
    share = min(1.0, count / max(1, sum(map(len, members))))
    found, variances = [], []
    for cell, rows in zip(taken, members, strict=True):
        some = rows[torch.rand(len(rows), generator=generator) < share]
        near = rest[cells.near(cell, features, search, min(NEIGHBOURS, len(rest)))]
        near = near[~torch.isin(near, some)]
        N = torch.cat([near, some])
        K = KernelOperator(X[N], kernel, X[pivots], dtype="float64").block()
        F = torch.linalg.solve_triangular(C.mT, K, upper=True, left=False)
        S = _block(kernel, X[N], noise[N]).addmm_(F, F.mT, alpha=-1)
        found.append(some)
        variances.append(_last(S.clone(), len(some)))
        if len(N) < len(rest):
            fewer = torch.cat([torch.arange(len(near) // 2), torch.arange(len(near), len(N))])
            missing = _last(S[fewer][:, fewer], len(some)) - variances[-1]
            variances[-1] = (variances[-1] - missing).maximum(noise[some])
    return torch.cat(found), torch.cat(variances)


def _last(S: Tensor, count: int) -> Tensor:
    """The variances of the last points given all others."""
    L_22 = _factor(S)[len(S) - count :, len(S) - count :]
    return 1 / torch.cholesky_inverse(L_22).diagonal()


def _block(kernel: Kernel, X: Tensor, noise: Tensor) -> Tensor:
    """K̂ of a few points."""
    K = KernelOperator(X, kernel, dtype="float64").block()
    K.diagonal().add_(noise)
    return K


def _factor(S: Tensor) -> Tensor:
    """chol(S), with more on the diagonal where rounding has taken too much of it."""
    scale = float(S.diagonal().max()) if len(S) else 1.0
    for jitter in JITTERS:
        S.diagonal().add_(jitter * scale)
        L, info = torch.linalg.cholesky_ex(S)
        if not int(info):
            factor: Tensor = L
            return factor
    raise not_positive()
