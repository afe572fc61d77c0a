"""Which pairs of panels a product visits: all, but for those whose entries are negligible."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from megagp.engines.base import COL_STEP, ROW_STEP, WHOLE, Share, Statistics

PANEL = 256  # points; as kd_order cuts them
# Panel pairs are visited in squares of so many panels: their points stay in the L2 cache, and
# each panel's sums come from few slots of a wave.
GROUP = 64
# A first level so many times the safe one is tried: most of what is skipped is far smaller.
TRIED = 16.0


@dataclass(frozen=True)
class PanelPairs:
    """The pairs to visit, as i * columns + j, int32 on the device of the points."""

    codes: Tensor
    columns: int
    statistics: Statistics


def panel_pairs(
    X: Tensor, Z: Tensor | None, value: Callable[[Tensor], Tensor], tolerance: float
) -> PanelPairs:
    """Every panel pair (symmetric: j <= i) whose k can exceed a level set by the tolerance.

    X, Z: features, n x d and m x d. value: h, the squared distance, to k. tolerance: bound
    on the spectral norm of what is left out of K, 0 for nothing.
    A skipped pair of boxes at distance h leaves out at most k(h) per entry. What is left out
    has a spectral norm of at most the geometric mean of its largest row and column sums, and
    that is at most the tolerance if no entry exceeds tolerance / sqrt(n m).
    """
    rows, cols = -(-len(X) // PANEL), -(-len(X if Z is None else Z) // PANEL)
    if not rows * cols:
        return PanelPairs(torch.zeros(0, dtype=torch.int32, device=X.device), cols, Statistics())
    if rows * cols > 2**31 - 1:
        raise ValueError(
            f"X: expected at most 2**31 pairs of {PANEL} points, got {rows} x {cols}; "
            "triton numbers them in 32 bits: use more devices with fewer points each, or tiles"
        )
    x = boxes(X)
    z = x if Z is None else boxes(Z)
    safe = tolerance / (PANEL * math.sqrt(rows * cols))
    for level in (TRIED * safe, safe) if tolerance else (0.0,):
        found = _visit(x, z, Z is None, value, level)
        if found.statistics.culling_bound <= tolerance:
            break
    return found


def owned(pairs: PanelPairs, share: Share) -> Tensor:
    """The codes that a share owns, by `Share.owns` on the device."""
    if share == WHOLE:
        return pairs.codes
    i, j = pairs.codes.long() // pairs.columns, pairs.codes.long() % pairs.columns
    # int64 wraps around like the unsigned product, and a shift would keep its sign.
    place = i * (ROW_STEP - 2**64) + j * (COL_STEP - 2**64)
    place = (place >> 32) & (2**32 - 1)
    start, stop = share.interval
    return pairs.codes[(start <= place) & (place < stop)]


def boxes(X: Tensor) -> tuple[Tensor, Tensor]:
    """The least and greatest features of each panel: panels x d, twice."""
    missing = -len(X) % PANEL
    panels = torch.cat([X, X[-1:].expand(missing, -1)]).view(-1, PANEL, X.shape[1])
    return panels.amin(dim=1), panels.amax(dim=1)


def _visit(
    x: tuple[Tensor, Tensor],
    z: tuple[Tensor, Tensor],
    symmetric: bool,
    value: Callable[[Tensor], Tensor],
    level: float,
) -> PanelPairs:
    rows, cols = len(x[0]), len(z[0])
    j = torch.arange(cols, device=x[0].device)
    row_loss, col_loss = x[0].new_zeros(rows), x[0].new_zeros(cols)
    codes = []
    for start in range(0, rows, GROUP):
        i = torch.arange(start, min(start + GROUP, rows), device=j.device)
        wanted = (j <= i[:, None]) if symmetric else torch.ones_like(j * i[:, None]).bool()
        if level > 0:
            k = value(_gaps(x, z, i))
            skipped = wanted & (k < level)
            wanted &= ~skipped
            row_loss[i] += (k * skipped).sum(dim=1)
            col_loss += (k * skipped).sum(dim=0)
        a, b = wanted.nonzero(as_tuple=True)
        squares = (b // GROUP).argsort(stable=True)
        codes.append((i[a] * cols + b)[squares].int())
    if symmetric:
        row_loss = row_loss + col_loss
        col_loss = row_loss
    bound = PANEL * float((row_loss.max() * col_loss.max()).sqrt())
    found = torch.cat(codes)
    pairs = rows * (rows + 1) // 2 if symmetric else rows * cols
    return PanelPairs(found, cols, Statistics(1 - len(found) / pairs, bound))


def _gaps(x: tuple[Tensor, Tensor], z: tuple[Tensor, Tensor], i: Tensor) -> Tensor:
    """The squared distance of the boxes of panels i from all others: len(i) x columns."""
    h = x[0].new_zeros(len(i), len(z[0]))
    for c in range(x[0].shape[1]):
        below = z[0][:, c] - x[1][i, c, None]
        above = x[0][i, c, None] - z[1][:, c]
        h += torch.maximum(below, above).clamp(min=0.0).square()
    return h
