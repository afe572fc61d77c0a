"""Training points predicted from all others, without another solve.

With s² = 1 / [K̂⁻¹]_ii, the variance of observation i given the others, and weights v = K̂⁻¹ (y - Hβ)
the prediction of y_i from the others is off by v_i s² (Rasmussen & Williams 2006, eq. 5.12), β held
fixed. Where β follows from the others as well, Q = K̂⁻¹ - G (Hᵀ K̂⁻¹ H)⁻¹ Gᵀ is in the place of K̂⁻¹,
G = K̂⁻¹ H. Weights with a residual r are exact ones of y - r, so with them it is off by r_i more.

s² comes from fewer points: pivots P and points N, those that are nearest to a cell and then those
of the cell that are left out. Of S = K̂_NN - K_NP K̂_PP⁻¹ K_PN = L Lᵀ the corner L_22 of L is enough:
that of S⁻¹ is (L_22 L_22ᵀ)⁻¹, and s² = 1 / [S⁻¹]_ii. What m of n neighbours leave is about as
1 / m - 1 / n, so what fewer of them leave tells how much is to be taken off. Pivots are points
like all others: each half of the points rests on the pivots of the other half.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from megagp.kernels import Kernel
from megagp.neighbours import Neighbours, metric_features
from megagp.operator import KernelOperator
from megagp.posterior.cell_factors import factorise
from megagp.posterior.cells import Cells
from megagp.training import Places

# Points near a cell, points in it, and cells that are looked at, of each half.
NEIGHBOURS, SIZE, CELLS = 2048, 256, 100
# What is taken off a variance for neighbours that are missing leaves at least this share of it.
LEAST = 0.5
# Weight of the other rows of a place, relative to a row's, that is roundoff.
ALONE = 1e-9


class LeftOut(NamedTuple):
    """n observations, each predicted from all others.

    rows: the training points that they are of, as indices. errors: n x p, of predictions.
    variances: of these errors; noise: what of that is noise. residual: n x p, what the solve has
    left of the observations, a part of the errors. effects: what of the variances is the effect of
    the place, if there are any.
    """

    rows: Tensor
    errors: Tensor
    variances: Tensor
    noise: Tensor
    residual: Tensor
    effects: Tensor | None = None

    def at(self, some: Tensor) -> LeftOut:
        """Those of some of them."""
        effects = None if self.effects is None else self.effects[some]
        rows, errors, variances, noise, residual = (part[some] for part in self[:5])
        return LeftOut(rows, errors, variances, noise, residual, effects)

    @property
    def alone(self) -> Tensor:
        """What of the variances no other place shares."""
        return self.noise if self.effects is None else self.noise + self.effects


def rows_left_out(
    out: LeftOut,
    at: Places,
    Y: Tensor,
    noise_scale: Tensor,
    count: int,
    seed: int,
    left_out: Tensor | None = None,
) -> LeftOut:
    """At most `count` of the N rows of those points, each predicted from all other rows.

    out: places, each predicted from the others: f ~ N(m, v) there, from outside, with the effect of
    the place if there is one. The other rows of
    row i's place have the weight τ = Σ w_j / σ² and the mean ȳ, of which the weights that predict
    know ȳ - r. From both, f ~ N((m + v τ (ȳ - r)) / (1 + v τ), v / (1 + v τ)).
    Y: N x p; noise_scale: N, s_i = 1 / w_i, relative to the noise that `out` has for one of 1 / W.
    left_out: N, what the noise of all rows of its place is multiplied by when it is left out; None
    for 1.
    """
    where = torch.full((len(at.first),), -1)
    where[out.rows] = torch.arange(len(out.rows))
    rows = (where[at.place] >= 0).nonzero()[:, 0]
    generator = torch.Generator().manual_seed(seed)
    rows = rows[torch.randperm(len(rows), generator=generator)[:count]]
    place = at.place[rows]
    mean, of = at.Y[place], where[place]
    level = out.noise[of] / at.noise_scale[place]  # σ² at the place
    if left_out is not None:
        level = level * left_out[rows]
    outside, latent = mean - out.errors[of], (out.variances - out.noise)[of].clamp(min=0.0)
    own = 1 / noise_scale[rows]
    others = (1 / at.noise_scale[place] - own).clamp(min=0.0)
    alone = others <= ALONE * own
    others = torch.where(alone, 1.0, others)
    theirs = mean + (own / others)[:, None] * (mean - Y[rows]) - out.residual[of]
    gain = torch.where(alone, 0.0, latent * others / level)
    known = (outside + gain[:, None] * theirs) / (1 + gain)[:, None]
    noise = level * noise_scale[rows]
    variances = latent / (1 + gain) + noise
    effects = None if out.effects is None else out.effects[of] / (1 + gain)
    return LeftOut(place, Y[rows] - known, variances, noise, out.residual[of], effects)


def variances_left_out(
    X: Tensor, kernel: Kernel, noise: Tensor, pivots: Tensor, count: int, seed: int
) -> tuple[Tensor, Tensor]:
    """About `count` training points, or all, and the variance of each given others.

    X: n x d; noise: n; pivots: k indices into X. Cost: O(m³ + m² k + m k²) for each of 2 CELLS
    cells, m = NEIGHBOURS.
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
    members = {cell: rest[rows] for cell, rows in enumerate(cells.members)}
    members = {cell: rows[mine[rows]] for cell, rows in members.items()}
    filled = torch.tensor([cell for cell, rows in members.items() if len(rows)])
    taken = filled[torch.randperm(len(filled), generator=generator)[:CELLS]].tolist()
    # No cell has a say beyond its size: of points at one place there may be any number.
    share = min(1.0, count / sum(min(len(members[cell]), SIZE) for cell in taken))
    C = _cholesky(_block(kernel, X[pivots], noise[pivots])) if len(pivots) else None
    found = []
    for cell in taken:
        rows = members[cell]
        rows = rows[torch.randperm(len(rows), generator=generator)[:SIZE]]
        some = rows[torch.rand(len(rows), generator=generator) < share]
        if not len(some):
            continue
        near = rest[cells.near(cell, features, search, min(NEIGHBOURS, len(rest)))]
        near = near[~torch.isin(near, some)]
        N = torch.cat([near, some])
        S = _block(kernel, X[N], noise[N])
        if C is not None:
            K = KernelOperator(X[N], kernel, X[pivots], dtype="float64").block()
            F = torch.linalg.solve_triangular(C.mT, K, upper=True, left=False)
            S.addmm_(F, F.mT, alpha=-1)
        fewer = torch.cat([torch.arange(len(near) // 2), torch.arange(len(near), len(N))])
        worse, variance = _last(S[fewer][:, fewer], len(some)), _last(S, len(some))
        if len(fewer) < len(N):
            left = (1 / len(N) - 1 / len(rest)) / (1 / len(fewer) - 1 / len(N))
            least = noise[some].maximum(LEAST * variance)
            variance = (variance - left * (worse - variance)).maximum(least)
        found.append((some, variance))
    rows, variances = (torch.cat(parts) for parts in zip(*found, strict=True))
    return rows, variances


def _last(S: Tensor, count: int) -> Tensor:
    """The variances of the last points given all others."""
    L_22 = _cholesky(S)[len(S) - count :, len(S) - count :]
    return 1 / torch.cholesky_inverse(L_22).diagonal()


def _block(kernel: Kernel, X: Tensor, noise: Tensor) -> Tensor:
    """K̂ of a few points."""
    K = KernelOperator(X, kernel, dtype="float64").block()
    K.diagonal().add_(noise)
    return K


def _cholesky(S: Tensor) -> Tensor:
    return factorise(S, float(S.diagonal().max()))
