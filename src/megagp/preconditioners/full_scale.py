"""P = L Lᵀ + S: low rank for what all points share, sparse for what neighbours share.

A pivoted Cholesky factor L of moderate rank leaves K̂ - L Lᵀ with short correlations: given
the pivots, a point depends on its neighbours alone. S takes those in, by its inverse factor
(Vecchia's approximation): with w_i the weights of the best linear prediction of point i from
its nearest predecessors N(i), under the covariance R = K̂ - L Lᵀ,

    S⁻¹ = Uᵀ U,  row i of U: (e_i - w_i) / sqrt(v_i),
    w_i = R_NN⁻¹ R_Ni,  v_i = R_ii - R_iN w_i.

With B = U L, P = U⁻¹ (I + B Bᵀ) U⁻ᵀ.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from megagp.covariance import Covariance
from megagp.engines import SparseRows
from megagp.preconditioners.pivoted_cholesky import in_float64, low_rank
from megagp.preconditioners.predecessors import Predecessors
from megagp.preconditioners.vecchia import whiten


class FullScale:
    """P = U⁻¹ (I + B Bᵀ) U⁻ᵀ with sparse U and B = U L, n x k, for pivots and predecessors.

    Cost: O(n k² + n m² k) to make with m predecessors, O(n (k + m) t) per solve. Memory 8 n k
    bytes where that is little, else 4 n k.
    """

    def __init__(self, covariance: Covariance, pivots: Tensor, predecessors: Predecessors) -> None:
        self.pivots, self.ranks = pivots, covariance.ranks
        self.rows = self.ranks.rows(len(covariance))
        # A row of U needs the rows of L of its predecessors, so L is gathered. It turns into U L.
        L = self.ranks.gather(low_rank(covariance, pivots, self.rows), len(covariance))
        U, self._log_v = _inverse_factor(covariance, L, predecessors, self.rows)
        self._order = predecessors.order
        self._U = U
        # Own rows of U, and what they contribute to Uᵀ.
        self._own = U if self.ranks.size == 1 else U.some(self.rows)
        self._own_T = self._own.transposed()
        self._B = L if self.ranks.size == 1 else L[self.rows].clone()
        A = torch.zeros(self.rank, self.rank, dtype=torch.float64)
        for _, B in self._chunks():
            A.addmm_(B.T, B)
        unit = torch.eye(self.rank, dtype=torch.float64)
        self._A = torch.linalg.cholesky(self.ranks.sum(A) + unit)

    @property
    def rank(self) -> int:
        return self._B.shape[1]

    def solve(self, R: Tensor) -> Tensor:
        """P⁻¹ R = Uᵀ (I - B A⁻¹ Bᵀ) U R, A = I + Bᵀ B, n x t."""
        W, first = self._own.times(R), self.rows.start
        # As Wᵀ B, which BLAS runs twice as fast as Bᵀ W.
        C = W.new_zeros(W.shape[1], self.rank)
        for rows, B in self._chunks():
            C.addmm_(W[rows.start - first : rows.stop - first].T, B)
        C = torch.cholesky_solve(self.ranks.sum(C).T, self._A)
        for rows, B in self._chunks():
            W[rows.start - first : rows.stop - first] -= B @ C
        return self.ranks.sum(self._own_T.times(W))

    def logdet(self) -> float:
        """log|P| = log|A| + Σ log v."""
        return float(2 * self._A.diagonal().log().sum()) + self._log_v

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """z = U⁻¹ (B ε₁ + ε₂) ~ N(0, P): n x count."""
        draw = {"generator": generator, "dtype": torch.float64}
        low = torch.randn(self.rank, count, **draw)  # type: ignore[call-overload]
        Z: Tensor = torch.randn(len(self._U), count, **draw)  # type: ignore[call-overload]
        for rows, B in self._chunks():
            Z[rows] += B @ low
        Z = self.ranks.gather(Z[self.rows], len(Z))
        self._U.solve(self._order, Z)
        return Z

    def _chunks(self) -> Iterator[tuple[slice, Tensor]]:
        return in_float64(self._B, self.rows)


def _inverse_factor(
    covariance: Covariance, L: Tensor, predecessors: Predecessors, own: slice
) -> tuple[SparseRows, float]:
    """U, and Σ log v; rows `own` are made here, the others by other ranks.

    Rows `own` of L become those of U L.
    """
    nearest, order = predecessors.nearest, predecessors.order
    n, m = nearest.shape
    mine = order[(order >= own.start) & (order < own.stop)]
    made = torch.empty(len(mine), m + 1, dtype=torch.float64)
    made[torch.from_numpy(mine - own.start)] = torch.column_stack(
        whiten(covariance, L, nearest, mine)
    )
    found = covariance.ranks.gather(made, n)
    weights, v = found[:, :m], found[:, m]
    scale = v.rsqrt()
    there = nearest >= 0
    # A row: its predecessors, then itself.
    columns = np.concatenate([nearest, np.arange(n)[:, None]], axis=1, dtype=np.int32)
    values = torch.cat([-weights * scale[:, None], scale[:, None]], dim=1).numpy()
    kept = np.concatenate([there, np.ones((n, 1), dtype=bool)], axis=1)
    starts = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    return SparseRows(starts, columns[kept], values[kept], n), float(v.log().sum())
