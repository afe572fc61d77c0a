"""Variance given the pivots and the training points near each new one: a certified upper bound.

Conditioning a Gaussian process on fewer observations can only raise its variance, so for any
set S of training points

    k(x, x) - k(x, S) K̂_SS⁻¹ k(S, x)  >=  k(x, x) - k(x, X) K̂⁻¹ k(X, x).

Here S = P ∪ N(x): the pivots P, the same for every x, and training points N(x) near x among the
others. Training points are divided into cells; N(x) are the points nearest to the centre of x's
cell, so that all new points of a cell share one factorisation, which is kept. With
C = chol(K̂_PP) and F = k(·, P) C⁻ᵀ kept, the Cholesky factorisation of

    K̂_PP                              C
    K_NP  K̂_NN              into      F_N  L
    k_xP  k_xN  k_xx                  b    a   ·

is continued from column |P| on, and k(x, x) - |b|² - |a|² is the variance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from megagp.engines import NativeEngine
from megagp.kernels import Kernel
from megagp.neighbours import Neighbours, chunks, metric_features
from megagp.operator import KernelOperator
from megagp.posterior.cell_factors import (
    JITTERS,
    CellFactors,
    DenseFactors,
    Nearest,
    RowsOfF,
    not_positive,
)
from megagp.posterior.cells import Cells
from megagp.posterior.native_factors import NativeFactors

# Neighbours per point of a cell. Larger cells need fewer factorisations, and more neighbours for
# the same excess.
PER_MEMBER = 4
# From how many neighbours `choose_neighbours` chooses; from how many cells and points of each.
CHOICES = (96, 192, 384, 768, 1536)
SAMPLE_CELLS, SAMPLE_POINTS = 4, 12
# New points per pass; and rows that any budget has room for.
CHUNK = 4096
FEWEST_ROWS = 64


class SubsetVariance:
    """Latent variances from the pivots and the `neighbours` points nearest to a cell, jointly.

    X: n x d; noise: n, the noise variance of each point; pivots: k indices into X.
    neighbours: m, or None for as few as bring the median excess of the observed standard
        deviation over the exact one down to about `excess`; see `choose_neighbours`.
    memory_budget: bytes beyond the arguments. F (n x k) is kept if it takes no more than half;
        factors are kept, first come, while they take no more than the other half.
    Cost: O(n k²) once; O(m² k + m³) for each cell that a new point lies in, once while it is kept;
    O(k² + m k + m²) per new point.
    """

    def __init__(
        self,
        X: Tensor,
        kernel: Kernel,
        noise: Tensor,
        pivots: Tensor,
        *,
        neighbours: int | None = None,
        excess: float = 0.015,
        memory_budget: int = 768 * 2**20,
        random_state: int = 0,
    ) -> None:
        if neighbours is not None and neighbours < 0:
            raise ValueError(
                f"neighbours: expected a number >= 0, got {neighbours}; None chooses one"
            )
        self._kernel = kernel
        self._memory_budget = memory_budget
        is_pivot = torch.zeros(len(X), dtype=torch.bool, device=X.device)
        is_pivot[pivots] = True
        # Neighbours come from the rest alone: no observation counts twice.
        self._X_P, self._noise_P = X[is_pivot], noise[is_pivot]
        self._X, self._noise = X[~is_pivot], noise[~is_pivot]
        self._C = self._factorise_pivots()
        entries = len(self._X) * len(self._X_P)
        self._F = self._rows_of_F(self._X) if 16 * entries <= memory_budget else None
        self._features = metric_features(kernel, self._X)
        self._search = Neighbours(self._features, memory_budget=memory_budget // 8)
        if neighbours is None:
            neighbours = self.choose_neighbours(excess, random_state)
        self.neighbours = min(neighbours, len(self._X))
        self._nearest: dict[int, Tensor] = {}
        if self.neighbours:
            self._cells = Cells(self._features, _cell_size(self.neighbours))
            self._factors = self._make_factors(self._near, memory_budget // 2)

    @torch.no_grad()
    def latent(self, X_new: Tensor) -> Tensor:
        """The variance of the function at new points, t x d to t, never below the exact one."""
        variance = self._kernel.on(X_new.device, torch.float64).diagonal(X_new).clone()
        per_point = 32 * (1 + len(self._X_P) + self.neighbours)
        size = self._memory_budget // 4 // per_point
        for chunk in chunks(len(X_new), max(FEWEST_ROWS, min(CHUNK, size))):
            x = X_new[chunk]
            if not self.neighbours:
                variance[chunk] -= self._rows_of_F(x).square().sum(dim=1)
                continue
            cell, order = self._cells.of(metric_features(self._kernel, x)).sort(stable=True)
            prior = variance[chunk][order]
            variance[chunk.start + order] = self._factors.variances(
                x[order], prior, self._rows_of_F(x[order]), cell
            )
        return variance.clamp_(min=0.0)

    @torch.no_grad()
    def choose_neighbours(self, excess: float, random_state: int = 0) -> int:
        """The fewest of CHOICES for which the median excess of the std is about `excess`.

        Some points of a few cells are left out and predicted from the others. The excess falls
        about as 1 / m, so what halving m costs is what is still missing.
        """
        generator = torch.Generator().manual_seed(random_state)
        largest = [m for m in CHOICES if m + SAMPLE_POINTS <= len(self._X)]
        if not largest:
            return CHOICES[0]
        cells = Cells(self._features, _cell_size(largest[-1])).members
        chosen = torch.randperm(len(cells), generator=generator)[:SAMPLE_CELLS].tolist()
        left_out = [
            cells[c][torch.randperm(len(cells[c]), generator=generator)[:SAMPLE_POINTS]]
            for c in chosen
        ]
        rows = torch.cat(left_out)
        before = self._left_out(rows, CHOICES[0] // 2)
        for m in largest:
            found = self._left_out(rows, m)
            limit = (2 * found - before).maximum(self._noise[rows])
            if float((found / limit).sqrt().median()) - 1 <= excess:
                return m
            before = found
        return largest[-1]

    def _left_out(self, rows: Tensor, m: int) -> Tensor:
        """Observed variances of training points given the pivots and m others near their cells."""
        kept = torch.ones(len(self._X), dtype=torch.bool, device=self._X.device)
        kept[rows] = False
        others = kept.nonzero()[:, 0]
        search = Neighbours(self._features[others])
        cells = Cells(self._features, _cell_size(m))

        def near(cell: int) -> Tensor:
            return others[search.nearest(cells.centres[cell : cell + 1], m)[0]]

        cell, order = cells.of(self._features[rows]).sort(stable=True)
        x = self._X[rows[order]]
        prior = self._kernel.on(x.device, torch.float64).diagonal(x)
        factors = self._make_factors(near, 0)
        found = torch.empty_like(prior)
        found[order] = factors.variances(x, prior, self._rows_of_F(x), cell)
        return found + self._noise[rows]

    def _near(self, cell: int) -> Tensor:
        """N: the training points nearest to the centre of a cell."""
        if cell not in self._nearest:
            centre = self._cells.centres[cell : cell + 1]
            self._nearest[cell] = self._search.nearest(centre, self.neighbours)[0]
        return self._nearest[cell]

    def _make_factors(self, nearest: Nearest, budget: int) -> CellFactors:
        native = NativeEngine().supports(self._kernel, self._X, None, torch.float64)
        kind = NativeFactors if native.ok else DenseFactors
        return kind(self._kernel, self._X, self._noise, self._F_at, nearest, budget)

    def _F_at(self, rows: Tensor) -> RowsOfF:
        if self._F is not None:
            return RowsOfF(slice(None), self._F, rows)
        unique, where = torch.unique(rows, return_inverse=True)
        return RowsOfF(unique, self._rows_of_F(self._X[unique]), where)

    def _rows_of_F(self, X: Tensor) -> Tensor:
        """k(X, P) C⁻ᵀ, row by row in memory: rows are gathered by the thousand."""
        F = X.new_empty(len(X), len(self._X_P))
        if F.numel() == 0:
            return F
        size = self._memory_budget // (64 * len(self._X_P))
        for rows in chunks(len(X), max(FEWEST_ROWS, size)):
            K = KernelOperator(X[rows], self._kernel, self._X_P, dtype="float64").block()
            F[rows] = torch.linalg.solve_triangular(self._C.mT, K, upper=True, left=False)
        return F

    @torch.no_grad()
    def _factorise_pivots(self) -> Tensor:
        if not len(self._X_P):
            return self._X.new_zeros(0, 0)
        K = KernelOperator(self._X_P, self._kernel, dtype="float64").block()
        K.diagonal().add_(self._noise_P)
        scale = float(K.diagonal().max())
        for jitter in JITTERS:
            K.diagonal().add_(jitter * scale)
            C, info = torch.linalg.cholesky_ex(K)
            if not int(info):
                factor: Tensor = C
                return factor
        raise not_positive()


def _cell_size(neighbours: int) -> int:
    return max(1, neighbours // PER_MEMBER)
