"""Tables of M for the offsets between cells, and for which offsets they are good enough.

Sides of cells are powers of 2 (times the lengthscale), so that tables depend on the kernel's
family, the level and the offset alone: they outlive a change of lengthscales.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from megagp.engines.far_field.polynomials import Array, Radial, matrix, powers, terms, values
from megagp.kernels import Kernel, RationalQuadratic, Stationary

TRIALS = {1: (8, 16), 2: (7, 13), 3: (5, 7, 10)}  # degrees tried, by dimension
DEGREE = {d: max(trials) for d, trials in TRIALS.items()}
TOLERANCE = 1e-6  # of an entry of K, in units of its largest
SAFETY = 2.0  # between the largest error sampled and the one that is stated
MAX_OFFSETS = 512  # per level, up to symmetry

Offset = tuple[int, ...]


@dataclass(frozen=True)
class Profile:
    """A radial function by its family and, for the rational quadratic, alpha."""

    kind: type[Kernel]
    alpha: float = 1.0

    def radial(self) -> Radial:
        kernel = self.kind(alpha=self.alpha) if self.kind is RationalQuadratic else self.kind()
        assert isinstance(kernel, Stationary)

        def k(r: Array) -> Array:
            with torch.no_grad():
                found: Array = kernel.radial(torch.from_numpy(r)).numpy()
            return found

        return k


@dataclass(frozen=True)
class Table:
    """M = L R' of two cells, terms x rank each, and a bound on the error of k."""

    L: NDArray[np.float32]
    R: NDArray[np.float32]
    error: float


@dataclass(frozen=True)
class LevelTables:
    """What the native core takes: offsets (3 numbers >= 0 each), errors, L' and R of each."""

    offsets: NDArray[np.int32]
    errors: Array
    left: list[NDArray[np.float32]]
    right: list[NDArray[np.float32]]


def level_tables(
    profile: Profile, d: int, side: float, depth: int, cutoff: float
) -> list[LevelTables]:
    """Tables for the levels 0 .. depth - 1 of cells, the root of this side.

    Level by level: offsets without a table are split, those of their children come next.
    Offsets whose cells are farther apart than `cutoff` (lengthscales) need none.
    """
    # Matrices are so small that threads would mostly wait for each other.
    with threadpool_limits(1):
        return _by_level(profile, d, side, depth, cutoff)


def _by_level(
    profile: Profile, d: int, side: float, depth: int, cutoff: float
) -> list[LevelTables]:
    found = []
    pending: set[Offset] = {(0,) * d}
    for level in range(depth):
        s = side / 2**level
        tables: dict[Offset, Table] = {}
        failed: set[Offset] = set()
        for o in pending:
            gap = s * float(np.linalg.norm(np.maximum(np.array(o) - 1, 0)))
            if gap > cutoff:
                continue
            table = None if max(o) < 2 else translation(profile, s, o)
            if table is None:
                failed.add(o)
            else:
                tables[o] = table
        found.append(_unfold(tables, d))
        steps = list(product((-1, 0, 1), repeat=d))
        pending = {
            _canonical([2 * x + e for x, e in zip(o, step, strict=True)])
            for o in failed
            for step in steps
        }
        if len(pending) > MAX_OFFSETS:
            pending = {o for o in pending if max(o) < 8}
    return found


@lru_cache(maxsize=1024)
def translation(profile: Profile, side: float, offset: Offset) -> Table | None:
    """M of two cells at the least degree and rank that meet the tolerance; None if none does.

    The error is sampled on a grid with the corners of the cells, where it is largest.
    """
    d = len(offset)
    k = profile.radial()
    line = np.array([-1.0, -0.6, 0.0, 0.6, 1.0]) if d < 3 else np.array([-1.0, -0.4, 0.4, 1.0])
    u = np.array(list(product(line, repeat=d)))
    exact = k(side * np.linalg.norm(np.array(offset) + (u[:, None] - u) / 2, axis=2))
    # Most offsets need few polynomials, and M costs the sixth power of the degree.
    low = 2
    for degree in TRIALS[d]:
        b = powers(d, degree)
        T, M = values(b, u), matrix(k, side, offset, degree)
        for p in range(low, degree + 1):
            q = terms(d, p)
            if SAFETY * np.abs(T[:, :q] @ M[:q, :q] @ T[:, :q].T - exact).max() <= 0.7 * TOLERANCE:
                return _compressed(M[:q, :q], b[:q].sum(axis=1) % 2, T[:, :q], exact)
        low = degree + 1
    return None


def _compressed(M: Array, odd: NDArray[np.int64], T: Array, exact: Array) -> Table:
    """M by as few factors as the tolerance allows.

    Exchanging the cells turns the offset around: M[c, b] = (-1)^(|b| + |c|) M[b, c]. So S M,
    S = diag((-1)^|b|), is symmetric, and M = S Q diag(e) Q'.
    """
    S = np.where(odd == 1, -1.0, 1.0)
    e, Q = np.linalg.eigh(S[:, None] * M)
    largest = np.argsort(-np.abs(e))
    e, Q = e[largest], Q[:, largest]
    left, right = T @ (S[:, None] * Q) * e, T @ Q

    def error(rank: int) -> float:
        return SAFETY * float(np.abs(left[:, :rank] @ right[:, :rank].T - exact).max())

    low, high = 1, len(M)
    while low < high:
        middle = (low + high) // 2
        if error(middle) <= TOLERANCE:
            high = middle
        else:
            low = middle + 1
    L = (S[:, None] * Q * e)[:, :high]
    return Table(L.astype(np.float32), Q[:, :high].astype(np.float32), error(high))


def _canonical(offset: list[int]) -> Offset:
    return tuple(sorted((abs(x) for x in offset), reverse=True))


def _unfold(tables: dict[Offset, Table], d: int) -> LevelTables:
    """Tables of all orders of the components of their offsets; the core does the signs."""
    found: dict[tuple[int, ...], tuple[float, NDArray[np.float32], NDArray[np.float32]]] = {}
    for o, table in tables.items():
        for order in permutations(range(d)):
            moved = (*(o[i] for i in order), 0, 0)[:3]
            if moved not in found:  # x_i of the new cell is x_order[i] of the old one
                place = _places(d, order)[: len(table.L)]
                left, right = table.L[place].T, table.R[place]
                found[moved] = (
                    table.error,
                    np.ascontiguousarray(left),
                    np.ascontiguousarray(right),
                )
    return LevelTables(
        np.array(list(found), dtype=np.int32).reshape(-1, 3),
        np.array([error for error, _, _ in found.values()], dtype=float),
        [left for _, left, _ in found.values()],
        [right for _, _, right in found.values()],
    )


@lru_cache(maxsize=16)
def _places(d: int, order: tuple[int, ...]) -> NDArray[np.int64]:
    """Where the polynomial with exponents b' was: b'_i = b_order[i]."""
    b = powers(d, DEGREE[d])
    at = {tuple(x): s for s, x in enumerate(b.tolist())}
    back = np.argsort(order)
    return np.array([at[tuple(x[back].tolist())] for x in b])
