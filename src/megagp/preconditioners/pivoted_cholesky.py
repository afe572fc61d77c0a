"""P = L Lᵀ + diag(noise): a low-rank stand-in for K̂ that is cheap to invert."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from megagp.covariance import Covariance

# Rows of L that are made, or converted to float64, at a time.
CHUNK = 2048
# Bytes up to which L is kept in float64 and need not be converted.
IN_FLOAT64 = 1 << 28
# Ridges on the pivots' block, as shares of its largest entry, until it has a Cholesky factor.
RIDGES = (1e-12, 1e-10, 1e-8, 1e-6, 1e-4)


class PivotedCholesky:
    """P = L Lᵀ + N, N = diag(noise), with L = K[:, S] C⁻ᵀ, C Cᵀ = K[S, S], for pivots S.

    L: n x k, stored in float32 where it is large: P is then some other matrix near K̂, but all
    its verbs are of the same P, in float64. With float32 arithmetic the difference in `solve`
    cancels. Each rank makes and keeps its own rows of L: `rows`.
    Cost: O(n k²) to make, O(n k t) per solve; memory 4 n k bytes; all of it divided by the ranks.
    """

    def __init__(self, covariance: Covariance, pivots: Tensor) -> None:
        self.pivots = pivots
        self.noise = covariance.noise
        self.ranks = covariance.ranks
        self.rows = self.ranks.rows(len(covariance))
        self.L = low_rank(covariance, pivots, self.rows)
        k = self.L.shape[1]
        # P⁻¹ = N⁻¹ - N⁻¹ L A⁻¹ Lᵀ N⁻¹,  A = I + Lᵀ N⁻¹ L  (Woodbury)
        A = torch.zeros(k, k, dtype=torch.float64)
        for rows, L in self._chunks():
            scaled = L / self.noise[rows, None].sqrt()
            A.addmm_(scaled.T, scaled)
        self._A = torch.linalg.cholesky(self.ranks.sum(A).add_(torch.eye(k, dtype=torch.float64)))

    @property
    def rank(self) -> int:
        return self.L.shape[1]

    def solve(self, R: Tensor) -> Tensor:
        """P⁻¹ R, n x t."""
        N = self.noise[:, None]
        # As (RᵀN⁻¹) L, which BLAS runs twice as fast as Lᵀ (N⁻¹R).
        U = R.new_zeros(R.shape[1], self.rank)
        for rows, L in self._chunks():
            U.addmm_((R[rows] / N[rows]).T, L)
        U = torch.cholesky_solve(self.ranks.sum(U).T, self._A)
        own = R.new_empty(len(self.L), R.shape[1])
        for rows, L in self._chunks():
            here = slice(rows.start - self.rows.start, rows.stop - self.rows.start)
            own[here] = (R[rows] - L @ U) / N[rows]
        return self.ranks.gather(own, len(R))

    def logdet(self) -> float:
        """log|P| = log|A| + log|N|."""
        return float(2 * self._A.diagonal().log().sum() + self.noise.log().sum())

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """z = L ε₁ + N^½ ε₂ ~ N(0, P): n x count."""
        draw = {"generator": generator, "dtype": torch.float64}
        low = torch.randn(self.rank, count, **draw)  # type: ignore[call-overload]
        Z: Tensor = torch.randn(len(self.noise), count, **draw)  # type: ignore[call-overload]
        Z *= self.noise[:, None].sqrt()
        for rows, L in self._chunks():
            Z[rows] += L @ low
        return self.ranks.gather(Z[self.rows], len(Z))

    def _chunks(self) -> Iterator[tuple[slice, Tensor]]:
        return in_float64(self.L, self.rows)


def low_rank(covariance: Covariance, pivots: Tensor, own: slice) -> Tensor:
    """Rows `own` of L = K[:, S] C⁻ᵀ in float64, some at a time, kept in float32."""
    operator = covariance.operator.astype("float64")
    n, k = len(covariance), len(pivots)
    dtype = torch.float64 if 8 * n * k <= IN_FLOAT64 else torch.float32
    L = torch.empty(own.stop - own.start, k, dtype=dtype)
    if k == 0:
        return L
    C = _factor(operator.block(pivots, pivots))
    for rows in pieces(own, CHUNK):
        block = operator.block(rows, pivots)
        part = torch.linalg.solve_triangular(C, block.T, upper=False).T
        L[rows.start - own.start : rows.stop - own.start] = part
    return L


def in_float64(own: Tensor, rows: slice) -> Iterator[tuple[slice, Tensor]]:
    """A rank's own rows in float64, some at a time, and which of the n they are.

    Where they are converted, always in one place.
    """
    if own.dtype == torch.float64:
        yield rows, own
        return
    room = torch.empty(min(CHUNK, len(own)), own.shape[1], dtype=torch.float64)
    for some in pieces(rows, CHUNK):
        part = own[some.start - rows.start : some.stop - rows.start]
        yield some, room[: len(part)].copy_(part)


def pieces(rows: slice, size: int) -> Iterator[slice]:
    for start in range(rows.start, rows.stop, size):
        yield slice(start, min(start + size, rows.stop))


def _factor(K: Tensor) -> Tensor:
    """C with C Cᵀ = K + a ridge no larger than needed."""
    K = 0.5 * (K + K.T)
    largest = float(K.diagonal().max())
    for share in RIDGES:
        ridge = share * largest * torch.eye(len(K), dtype=K.dtype)
        C: Tensor
        C, info = torch.linalg.cholesky_ex(K + ridge)
        if int(info) == 0 and bool(C.isfinite().all()):
            return C
    raise ValueError(
        "kernel: expected a positive semidefinite one, got a block of K with negative "
        f"eigenvalues (smallest {float(torch.linalg.eigvalsh(K)[0]):.2g} of {largest:.2g}); "
        "check the kernel's formula"
    )
