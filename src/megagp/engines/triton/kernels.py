"""The programs that run on the GPU, in Triton's language.

Points are features, centred and scaled as in native/radial.h so that k is a short function of
h = |f - g|², kept dimension by dimension (d x n) and padded with zeros to whole panels, as are
right-hand sides; so no program needs a mask. A program takes a strip of rows of one panel pair:

    rows of panel i     STRIP x BN entries of K live in registers at a time; h from differences,
    in strips      ->   k(h) in place, then K V for the rows and K' V for the columns.

Sums over a panel are in the evaluation dtype and go to slots of their own, one per panel pair,
which `gather` adds up in float64 in a fixed order: no atomics, the same bits every time.
"""

from __future__ import annotations

import triton
import triton.language as tl

# The families of native/ops.h, and their formulas (L = ln 2, a = sqrt(h)); see native/radial.h.
MATERN12 = tl.constexpr(0)
MATERN32 = tl.constexpr(1)
MATERN52 = tl.constexpr(2)
RBF = tl.constexpr(3)
LN2 = tl.constexpr(0.6931471805599453)
# Beyond this h every k is 0, and before it nothing overflows.
FAR = tl.constexpr(1e30)
# Least h of which a root is taken: dk/dh of Matérn-1/2 is -L 2^-a / (2 a).
TINY = tl.constexpr(1e-30)


@triton.jit
def _value(h, FAMILY: tl.constexpr):
    """k(h) at outputscale 1."""
    if FAMILY == RBF:
        return tl.exp2(-tl.minimum(h, FAR))
    a = tl.sqrt(tl.minimum(h, FAR))
    e = tl.exp2(-a)
    if FAMILY == MATERN12:
        return e
    b = LN2 * a
    if FAMILY == MATERN32:
        return e + e * b
    return e * (1.0 + b + b * b * (1.0 / 3.0))


@triton.jit
def _slope(h, FAMILY: tl.constexpr):
    """k(h) and dk/dh at outputscale 1."""
    if FAMILY == RBF:
        k = tl.exp2(-tl.minimum(h, FAR))
        return k, -LN2 * k
    a = tl.sqrt(tl.minimum(tl.maximum(h, TINY), FAR))
    e = tl.exp2(-a)
    b = LN2 * a
    if FAMILY == MATERN12:
        return e, (-0.5 * LN2) * e / a
    if FAMILY == MATERN32:
        return e + e * b, (-0.5 * LN2 * LN2) * e
    c = e + e * b
    return c + e * b * b * (1.0 / 3.0), (-LN2 * LN2 / 6.0) * c


@triton.jit
def _squared_distances(
    x, z, nx, nz, rows, cols, D: tl.constexpr, DB: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):
    """h, M x N, from differences: product form would lose the digits of near points."""
    h = tl.zeros((M, N), x.dtype.element_ty)
    for c in range(0, D, DB):
        for k in tl.static_range(DB):
            f = tl.load(x + (c + k) * nx + rows)
            g = tl.load(z + (c + k) * nz + cols)
            delta = f[:, None] - g[None, :]
            h += delta * delta
    return h


@triton.jit
def _times(K, v, index, T: tl.constexpr, PRECISION: tl.constexpr):
    """K V[index]: M x T from M x N, for T = 1 or at least 16."""
    if T == 1:
        return tl.sum(K * tl.load(v + index)[None, :], axis=1)[:, None]
    V = tl.load(v + index[:, None] * T + tl.arange(0, T)[None, :])
    return tl.dot(K, V, input_precision=PRECISION)


@triton.jit
def _transposed_times(K, v, index, T: tl.constexpr, PRECISION: tl.constexpr):
    """K' V[index]: N x T from M x N, for T = 1 or at least 16."""
    if T == 1:
        return tl.sum(K * tl.load(v + index)[:, None], axis=0)[:, None]
    V = tl.load(v + index[:, None] * T + tl.arange(0, T)[None, :])
    return tl.dot(tl.trans(K), V, input_precision=PRECISION)


@triton.jit
def product(
    x,
    z,
    vx,
    vz,
    pairs,
    row_sums,
    col_sums,
    nx,
    nz,
    panels,
    SYMMETRIC: tl.constexpr,
    FAMILY: tl.constexpr,
    D: tl.constexpr,
    DB: tl.constexpr,
    T: tl.constexpr,
    PANEL: tl.constexpr,
    STRIP: tl.constexpr,
    PRECISION: tl.constexpr,
    BN: tl.constexpr,
):
    """A strip of a panel pair: K V for its rows and, if symmetric, K' V for its columns.

    row_sums: slot x PANEL x T; col_sums: slot x strip x PANEL x T.
    """
    slot = tl.program_id(0).to(tl.int64)
    strip = tl.program_id(1)
    pair = tl.load(pairs + slot)
    i, j = pair // panels, pair % panels
    in_row = strip * STRIP + tl.arange(0, STRIP)
    rows = i * PANEL + in_row
    s = tl.arange(0, T)
    total = tl.zeros((STRIP, T), x.dtype.element_ty)
    for b in range(0, PANEL, BN):
        in_col = b + tl.arange(0, BN)
        cols = j * PANEL + in_col
        h = _squared_distances(x, z, nx, nz, rows, cols, D, DB, STRIP, BN)
        K = _value(h, FAMILY)
        total += _times(K, vz, cols, T, PRECISION)
        if SYMMETRIC:
            sums = _transposed_times(K, vx, rows, T, PRECISION)
            start = (slot * (PANEL // STRIP) + strip) * PANEL
            tl.store(col_sums + (start + in_col)[:, None] * T + s[None, :], sums)
    tl.store(row_sums + (slot * PANEL + in_row)[:, None] * T + s[None, :], total)


@triton.jit
def gradient(
    x,
    z,
    left,
    right,
    pairs,
    sums,
    row_sums,
    col_sums,
    nx,
    nz,
    panels,
    INPUTS: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    FAMILY: tl.constexpr,
    C: tl.constexpr,
    D: tl.constexpr,
    DB: tl.constexpr,
    T: tl.constexpr,
    PANEL: tl.constexpr,
    STRIP: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
    BN: tl.constexpr,
):
    """A strip of a panel pair, with B = left right': what derivatives are made of.

    sums: slot x strip x WIDTH, float64: Σ B dk/dh (f_c - g_c)² for each dimension c < C, and at
    C Σ B k. With INPUTS also Σ B dk/dh (f_c - g_c) over columns and over rows:
    row_sums, slot x (PANEL / BN) x PANEL x C; col_sums, slot x strip x PANEL x C.
    Symmetric: left = [U, W], right = [W, U], so that a pair serves both its triangles.
    """
    slot = tl.program_id(0).to(tl.int64)
    strip = tl.program_id(1)
    pair = tl.load(pairs + slot)
    i, j = pair // panels, pair % panels
    in_row = strip * STRIP + tl.arange(0, STRIP)
    rows = i * PANEL + in_row
    s = tl.arange(0, T)
    at = tl.arange(0, WIDTH)
    # A panel against itself holds both triangles already.
    share = 1.0
    if SYMMETRIC:
        share = tl.where(i == j, 0.5, 1.0)
    total = tl.zeros((WIDTH,), tl.float64)
    for b in range(0, PANEL, BN):
        in_col = b + tl.arange(0, BN)
        cols = j * PANEL + in_col
        h = _squared_distances(x, z, nx, nz, rows, cols, D, DB, STRIP, BN)
        k, H = _slope(h, FAMILY)
        L = tl.load(left + rows[:, None] * T + s[None, :])
        R = tl.load(right + cols[None, :] * T + s[:, None])
        B = tl.dot(L, R, input_precision=PRECISION)
        by_scale = tl.sum(tl.sum(B * k, axis=1).to(tl.float64), axis=0)
        total += tl.where(at == C, by_scale, 0.0)
        H = H * B
        for c in range(0, C):
            f = tl.load(x + c * nx + rows)
            g = tl.load(z + c * nz + cols)
            delta = f[:, None] - g[None, :]
            E = H * delta
            by_c = tl.sum(tl.sum(E * delta, axis=1).to(tl.float64), axis=0)
            total += tl.where(at == c, by_c, 0.0)
            if INPUTS:
                start = (slot * (PANEL // BN) + b // BN) * PANEL
                tl.store(row_sums + (start + in_row) * C + c, tl.sum(E, axis=1))
                start = (slot * (PANEL // STRIP) + strip) * PANEL
                tl.store(col_sums + (start + in_col) * C + c, tl.sum(E, axis=0))
    start = (slot * (PANEL // STRIP) + strip) * WIDTH
    tl.store(sums + start + at, total * share)


@triton.jit
def gather(
    out,
    sums,
    order,
    starts,
    size,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out[p] += the sums of every slot of panel p, in float64 and in the order of the slots.

    out: panels x size; sums: slots x PARTS x size; order: slots sorted by panel, those of
    panel p at starts[p] to starts[p + 1].
    """
    panel = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = tl.load(out + panel * size + at, mask=inside, other=0.0)
    for k in range(tl.load(starts + panel), tl.load(starts + panel + 1)):
        slot = tl.load(order + k)
        for part in tl.static_range(PARTS):
            here = sums + (slot * PARTS + part) * size + at
            total += tl.load(here, mask=inside, other=0.0).to(tl.float64)
    tl.store(out + panel * size + at, total, mask=inside)


@triton.jit
def block(
    x,
    z,
    out,
    n,
    m,
    scale,
    FAMILY: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """out[r, c] = scale k(x_r, z_c), n x m, from features n x D and m x D as they are."""
    r = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    h = tl.zeros((BM, BN), x.dtype.element_ty)
    for k in range(0, D):
        f = tl.load(x + r * D + k, mask=r < n, other=0.0)
        g = tl.load(z + c * D + k, mask=c < m, other=0.0)
        delta = f[:, None] - g[None, :]
        h += delta * delta
    K = (scale * _value(h, FAMILY)).to(out.dtype.element_ty)
    inside = (r < n)[:, None] & (c < m)[None, :]
    tl.store(out + r[:, None] * m + c[None, :], K, mask=inside)
