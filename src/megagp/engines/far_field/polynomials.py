"""Radial functions between two cubes as sums of products of polynomials.

With x = a + s u / 2 in one cube of side s and z = b + s w / 2 in another, u and w in [-1, 1]^d,
a kernel depends on x - z = s (o + (u - w) / 2), o = (a - b) / s. It is interpolated in
y = (u - w) / 2 at Chebyshev nodes,

    k(s |o + y|) = sum_a C[a] T_a(y),   T_a(y) = T_a0(y_0) T_a1(y_1) ...,

and every factor is a polynomial in u and in w,

    T_a((u - w) / 2) = sum over b + c <= a of B[a, b, c] T_b(u) T_c(w),

so that M[b, c] = sum_a C[a] B[a0, b0, c0] B[a1, b1, c1] ... No step but the interpolation and the
truncation to total degrees |b|, |c| <= p loses anything.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Radial = Callable[[Array], Array]


@cache
def powers(d: int, degree: int) -> NDArray[np.int64]:
    """The exponents of all polynomials up to a total degree, lowest degree first: terms x d."""
    every = [b for b in product(range(degree + 1), repeat=d) if sum(b) <= degree]
    return np.array(sorted(every, key=lambda b: (sum(b), tuple(-x for x in b))))


def terms(d: int, degree: int) -> int:
    """How many polynomials there are up to a total degree."""
    return int(np.prod([(degree + i) / i for i in range(1, d + 1)]) + 0.5)


def values(b: NDArray[np.int64], u: Array) -> Array:
    """T_b(u) for every point: points x terms."""
    T = np.cos(np.arange(b.max() + 1) * np.arccos(np.clip(u, -1, 1))[..., None])
    found: Array = np.prod([T[:, i, b[:, i]] for i in range(u.shape[1])], axis=0)
    return found


def matrix(radial: Radial, side: float, offset: tuple[int, ...], degree: int) -> Array:
    """M of two cubes `offset` sides apart, for all polynomials up to `degree`."""
    d = len(offset)
    nodes, to_coefficients, split = _interpolation(degree)
    grid = np.meshgrid(*[o + nodes for o in offset], indexing="ij")
    C = radial(side * np.sqrt(sum(g * g for g in grid)))
    for _ in range(d):  # each turn transforms the first axis and makes it the last
        C = np.tensordot(C, to_coefficients, (0, 1))
    # Sums over one a after the other, each for the b and c that the total degree still allows:
    # M is [b so far][c so far][a still to come].
    M = C.reshape(1, 1, *C.shape)
    for i in range(d):
        known, last = _extension(i + 1, degree)
        M = np.tensordot(M, split, (2, 0))  # ..., b_i, c_i at the end
        M = np.moveaxis(M, (-2, -1), (1, 3))  # [b][b_i][c][c_i]...
        M = M.reshape(M.shape[0] * M.shape[1], M.shape[2] * M.shape[3], *M.shape[4:])
        place = known * (degree + 1) + last
        M = M[place][:, place]
    return M


@cache
def _extension(d: int, degree: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Exponents in d dimensions as those in d - 1, by their place, and the last one."""
    b = powers(d, degree)
    at = {tuple(x): s for s, x in enumerate(powers(d - 1, degree).tolist())} if d > 1 else {(): 0}
    return np.array([at[tuple(x[:-1])] for x in b.tolist()]), b[:, -1]


@cache
def _interpolation(degree: int) -> tuple[Array, Array, Array]:
    """Nodes, the matrix from values there to coefficients, and B, for polynomials up to `degree`.

    In y = (u - w) / 2 twice the degree can matter, and no more.
    """
    count = 2 * degree + 1
    split = np.zeros((count, degree + 1, degree + 1))
    nodes, transform = _chebyshev(count)
    T = np.cos(np.arange(count)[:, None, None] * np.arccos((nodes[:, None] - nodes) / 2))
    full = np.einsum("bi,cj,aij->abc", transform, transform, T)
    split[:] = full[:, : degree + 1, : degree + 1]
    return nodes, transform, split


def _chebyshev(count: int) -> tuple[Array, Array]:
    angles = np.pi * (np.arange(count) + 0.5) / count
    transform = 2 / count * np.cos(np.arange(count)[:, None] * angles)
    transform[0] /= 2
    return np.cos(angles), transform
