"""Variance given the pivots and the training points near each new one: a certified upper bound.

Conditioning a Gaussian process on fewer observations can only raise its variance, so for any
set S of training points

    k(x, x) - k(x, S) K̂_SS⁻¹ k(S, x)  >=  k(x, x) - k(x, X) K̂⁻¹ k(X, x).

Here S = P ∪ N(x): the pivots P, the same for every x, and training points N(x) near x among the
others: those nearest to x; or, where many are needed, those nearest to the centre of the cell of
training points that x lies in, so that all new points of a cell share one factorisation, which
is kept. With C = chol(K̂_PP) and F = k(·, P) C⁻ᵀ kept, the Cholesky factorisation of

    K̂_PP                              C
    K_NP  K̂_NN              into      F_N  L
    k_xP  k_xN  k_xx                  b    a   ·

is continued from column |P| on, and k(x, x) - |b|² - |a|² is the variance.

Where the mean is h(x)ᵀ β and β unknown, the pivots say of it what generalised least squares does:
with B = C⁻¹ H_P it has the covariance T = (Bᵀ B)⁻¹ = W Wᵀ given them. Of h(x) they leave the row
φ(x) = (h(x)ᵀ - F(x) B) W, so that given them φ(x) φ(z)ᵀ adds to the covariance of x and z, and all
the rest is as before. That is a bound by the same argument: fewer observations say less of β, too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from megagp.engines import NativeEngine
from megagp.engines.native import MAX_COMPONENTS, components
from megagp.kernels import Kernel
from megagp.mean import basis
from megagp.memory import release_freed
from megagp.neighbours import Neighbours, chunks, metric_features
from megagp.operator import KernelOperator
from megagp.posterior.cell_factors import (
    CellFactors,
    DenseFactors,
    Nearest,
    New,
    RowsOfF,
    factorise,
)
from megagp.posterior.cells import Cells
from megagp.posterior.kept_factors import KeptFactors
from megagp.posterior.passing_factors import PassingFactors

# Neighbours per point of a cell. Larger cells need fewer factorisations, and more neighbours for
# the same excess.
PER_MEMBER = 4
# Of the memory budget, for factors of cells at most, and no more than F leaves; and of that if
# there is no room for all, when those that are kept save the less, the larger n is.
FOR_FACTORS, FOR_SOME = 3 / 4, 3 / 4
# Training points by which `choose` measures, and how many of their own neighbours tell it what
# there is to gain.
SAMPLE, REFERENCE = 48, 512
# By what factor gaps shrink when neighbours are doubled: as 1 / m does, and no slower than that.
SHRINK = 0.5, 0.75
# Where no number of own neighbours comes down to the excess, what cells may have more than the most
# of those have: they are ten times as fast.
SLACK = 1.4
TAIL = 2.0  # what the mean excess may be, in terms of the median
AT_LEAST = 2  # neighbours of a cell for each one that a point of its own would need
# New points per pass; and rows that any budget has room for.
CHUNK = 4096
FEWEST_ROWS = 64
# Variance of coefficients of the mean before the data, in terms of that of an observation: no
# knowledge to speak of, but finite where pivots leave a coefficient open.
VAGUE = 1e9


class Way(NamedTuple):
    """Which training points serve a new one: those nearest to it, or to the cell it lies in.

    per_member: neighbours for each point of a cell. If these are more than PER_MEMBER, cells are
    no smaller than what leaves room for the factors of all of them.
    """

    own: bool
    neighbours: int
    per_member: int = PER_MEMBER


class Sample(NamedTuple):
    """Training points that stand for new ones, whatever way serves them.

    rows: theirs; others: those of all that remain, which `search` looks among. own: the nearest of
    the others to each, nearest first.
    """

    rows: Tensor
    others: Tensor
    search: Neighbours
    new: New
    own: Tensor


# The cheaper ones first, per new point. Where each point needs few, they are
# its own; where many, a cell shares their factorisation.
WAYS = (
    Way(True, 32),
    Way(False, 192),
    Way(False, 384),
    Way(True, 64),
    Way(False, 768),
    Way(False, 1536),
    Way(True, 128),
    Way(False, 2048, 16),
    Way(True, 256),
    Way(True, 512),
)


def extrapolated(quarter: Tensor, half: Tensor, best: Tensor) -> Tensor:
    """What variances given m / 4, m / 2 and m neighbours come to with ever more of them.

    If they fall by g, s g, s² g, ... as neighbours are doubled, g s / (1 - s) is still to come
    after a fall of g. s is one number for all points, and within SHRINK.
    """
    shrink = float((half - best).sum() / (quarter - half).sum().clamp(min=1e-300))
    shrink = min(max(shrink, SHRINK[0]), SHRINK[1])
    return best - shrink / (1 - shrink) * (half - best)


class SubsetVariance:
    """Latent variances from the pivots and training points near the new one, jointly.

    X: n x d; noise: n, the noise variance of each point; pivots: k indices into X. mean: what is
    there beside the function, one of MEANS, with unknown coefficients.
    neighbours: m of each new point's own; a Way; or None for the cheapest of WAYS that brings the
        median excess of the observed standard deviation over the exact one down to `excess`.
    memory_budget: bytes beyond the arguments. F (n x k) is kept if it takes no more than half;
        factors take FOR_FACTORS of it: all are made at once if they fit, and else some are kept,
        first come first served, and others made once for each call.
    Cost: O(n k²) once; O(m² k + m³) for each cell, once while it is kept; O(k² + m k + m²) per
    new point.
    """

    def __init__(
        self,
        X: Tensor,
        kernel: Kernel,
        noise: Tensor,
        pivots: Tensor,
        *,
        mean: str = "zero",
        neighbours: int | Way | None = None,
        excess: float = 0.018,
        memory_budget: int = 860 * 2**20,
        random_state: int = 0,
    ) -> None:
        if isinstance(neighbours, int):
            neighbours = Way(True, neighbours)
        if neighbours is not None and neighbours.neighbours < 0:
            raise ValueError(
                f"neighbours: expected a number >= 0, got {neighbours.neighbours}; None chooses one"
            )
        self._kernel, self._mean = kernel, mean
        self._native = NativeEngine().supports(kernel, X, None, torch.float64).ok
        if self._native and mean != "zero":  # the mean is a term of its own
            self._native = len(components(kernel)) < MAX_COMPONENTS
        self._memory_budget = memory_budget
        is_pivot = torch.zeros(len(X), dtype=torch.bool, device=X.device)
        is_pivot[pivots] = True
        # Neighbours come from the rest alone: no observation counts twice.
        self._X_P, self._noise_P = X[is_pivot], noise[is_pivot]
        self._X, self._noise = X[~is_pivot], noise[~is_pivot]
        self._rest = (~is_pivot).nonzero()[:, 0]
        self._C = self._factorise_pivots()
        entries = len(self._X) * len(self._X_P)
        self._F = self._rows_of_F(self._X) if 16 * entries <= memory_budget else None
        observed = kernel.on(X.device, torch.float64).diagonal(X[:1]) + noise.mean()
        self._BW, self._W = self._trend_given_pivots(VAGUE * float(observed))
        with torch.no_grad():
            self._trend = self._trend_of_training()
        self._features = metric_features(kernel, self._X)
        self._search = Neighbours(self._features, memory_budget=memory_budget // 8)
        self._tried: dict[int, Cells] = {}
        way = self.choose(excess, random_state) if neighbours is None else neighbours
        self.own, self.neighbours = way.own, min(way.neighbours, len(self._X))
        self._nearest: dict[int, Tensor] = {}
        if not self.own:
            self._cells = self._cells_for(way)
            budget = self._factor_budget
            self._all_fit = len(self._cells) * self._factor_bytes(way) <= budget
            kept = budget if self._all_fit else int(FOR_SOME * budget)
            self._factors = self._make_factors(KeptFactors, self._near, kept)
        self._tried.clear()
        release_freed()  # what making F and choosing took

    @torch.no_grad()
    def latent(self, X_new: Tensor) -> Tensor:
        """The variance of the function at new points, t x d to t, never below the exact one."""
        variance = X_new.new_empty(len(X_new))
        per_point = 32 * (1 + len(self._X_P) + self.neighbours)
        size = self._memory_budget // 4 // per_point
        passes = chunks(len(X_new), max(FEWEST_ROWS, min(CHUNK, size)))
        if not self.own and self.neighbours and passes:
            self._by_cells(X_new, variance, passes)
            return variance.clamp_(min=0.0)
        for chunk in passes:
            new = self._new(X_new[chunk])
            if self.neighbours:
                near = self._search.nearest(metric_features(self._kernel, new.x), self.neighbours)
                variance[chunk] = self._by_own(new, near)
            else:
                variance[chunk] = new.prior - new.B.square().sum(dim=1)
        return variance.clamp_(min=0.0)

    @torch.no_grad()
    def choose(self, excess: float, random_state: int = 0) -> Way:
        """The first of WAYS by which the median excess of the std is about `excess`.

        And the mean excess at most TAIL times that: cells serve points at their margins badly.
        Training points are left out and predicted from the others. What many own neighbours leave
        falls by a factor at each doubling of their number, which halving it twice tells.
        """
        generator = torch.Generator().manual_seed(random_state)
        rows = torch.randperm(len(self._X), generator=generator)[:SAMPLE].to(self._X.device)
        most = min(REFERENCE, len(self._X) - len(rows))
        if most < WAYS[0].neighbours:
            return WAYS[0]
        sample = self._sample(rows, most)
        best, half, quarter = (self._left_out(sample, Way(True, most // f)) for f in (1, 2, 4))
        limit = extrapolated(quarter, half, best).maximum(self._noise[rows])

        def over(found: Tensor) -> Tensor:
            return (found / limit).sqrt() - 1

        # Where all own neighbours there are do not bring it down so far, what they do is enough.
        least = float(over(best).median())
        allowed = excess if least <= excess else SLACK * least

        def good(found: Tensor) -> bool:
            median, mean = float(over(found).median()), float(over(found).mean())
            return median <= allowed and mean <= TAIL * allowed

        # Fewer of its own can only be worse: from many to few, while they are enough.
        enough = most
        for m in sorted((way.neighbours for way in WAYS if way.own), reverse=True):
            if m < most:
                known = {most // 2: half, most // 4: quarter}
                if not good(known[m] if m in known else self._left_out(sample, Way(True, m))):
                    break
                enough = m
        for way in WAYS:
            if way.own and way.neighbours >= enough:
                return Way(True, enough)
            hopeful = not way.own and way.neighbours >= AT_LEAST * enough
            if hopeful and self._has_room(way, len(rows)) and good(self._left_out(sample, way)):
                return way
        return Way(True, enough)

    def _by_cells(self, X_new: Tensor, variance: Tensor, passes: list[slice]) -> None:
        """Writes latent variances, cell by cell, so that a factor that is not kept is made once,
        however many passes there are."""
        if self._all_fit:
            self._factors.make(range(len(self._cells)))
            self._all_fit = False  # they are there
        where = [self._cells.of(metric_features(self._kernel, X_new[chunk])) for chunk in passes]
        cell, order = torch.cat(where).sort(stable=True)
        for chunk in passes:
            at = order[chunk]
            variance[at] = self._factors.variances(self._new(X_new[at]), cell[chunk])

    def _by_own(self, new: New, near: Tensor) -> Tensor:
        """Latent variances given the pivots and each point's own neighbours, t x m."""
        factors = self._make_factors(PassingFactors, lambda point: near[point], 0)
        return factors.variances(new, torch.arange(len(near), device=near.device))

    def _sample(self, rows: Tensor, most: int) -> Sample:
        """The training points `rows`, with up to `most` neighbours each among the others."""
        kept = torch.ones(len(self._X), dtype=torch.bool, device=self._X.device)
        kept[rows] = False
        others = kept.nonzero()[:, 0]
        search = Neighbours(self._features[others])
        own = others[search.nearest(self._features[rows], most)]
        return Sample(rows, others, search, self._new(self._X[rows]), own)

    def _left_out(self, sample: Sample, way: Way) -> Tensor:
        """Observed variances of training points given the pivots and others, in that way."""
        rows, others, search, new, own = sample
        if way.own:
            return self._by_own(new, own[:, : way.neighbours].contiguous()) + self._noise[rows]
        cells, points = self._cells_for(way), self._features[others]

        def near(cell: int) -> Tensor:
            return others[cells.near(cell, points, search, way.neighbours)]

        cell, order = cells.of(self._features[rows]).sort(stable=True)
        factors = self._make_factors(KeptFactors, near, 0)
        found = torch.empty_like(new.prior)
        found[order] = factors.variances(new.at(order), cell)
        return found + self._noise[rows]

    def _cells_for(self, way: Way) -> Cells:
        """Those of this way; of the same size they are made once."""
        size = self._cell_size(way)
        if size not in self._tried:
            self._tried[size] = Cells(self._features, size)
        return self._tried[size]

    def _has_room(self, way: Way, left_out: int) -> bool:
        """Whether there are as many points, and memory for cells as small as a way wants them."""
        if way.neighbours + left_out > len(self._X):
            return False
        small = way.own or way.per_member == PER_MEMBER
        return small or self._cell_size(way) <= way.neighbours // PER_MEMBER

    def _cell_size(self, way: Way) -> int:
        """Points per cell."""
        if way.per_member == PER_MEMBER:
            return max(1, way.neighbours // PER_MEMBER)
        cells = max(1, self._factor_budget // self._factor_bytes(way))
        return max(way.neighbours // way.per_member, -(-len(self._X) // cells))

    @property
    def _factor_budget(self) -> int:
        left = self._memory_budget - (0 if self._F is None else self._F.nbytes)
        return min(int(FOR_FACTORS * self._memory_budget), left)

    def _factor_bytes(self, way: Way) -> int:
        """Of a cell: a triangle in float32, in tiles, or a square in float64."""
        m = way.neighbours
        return 2 * m * (m + 64) if self._native else 8 * m * m

    def _near(self, cell: int) -> Tensor:
        """N: the training points nearest to a cell."""
        if cell not in self._nearest:
            self._nearest[cell] = self._cells.near(
                cell, self._features, self._search, self.neighbours
            )
        return self._nearest[cell]

    def _make_factors(
        self, native: type[CellFactors], nearest: Nearest, budget: int
    ) -> CellFactors:
        kind = native if self._native else DenseFactors
        return kind(self._kernel, self._X, self._noise, self._F_at, nearest, budget, self._trend)

    def _new(self, x: Tensor) -> New:
        """What factors take of new points."""
        B = self._rows_of_F(x)
        trend = self._trend_at(x, B)
        prior = self._kernel.on(x.device, torch.float64).diagonal(x)
        return New(x, prior + trend.square().sum(dim=1), B, trend)

    @torch.no_grad()
    def _trend_given_pivots(self, vague: float) -> tuple[Tensor, Tensor]:
        """B W and W: k x q, q x q. vague: the variance of coefficients before the data."""
        B = torch.linalg.solve_triangular(self._C, basis(self._X_P, self._mean), upper=False)
        known = B.T @ B
        known.diagonal().add_(1 / vague)
        # T = A⁻¹ with A = L Lᵀ, so W = L⁻ᵀ.
        L = torch.linalg.cholesky(known)
        W = torch.linalg.solve_triangular(L, torch.eye(len(L), dtype=L.dtype), upper=False).T
        return B @ W, W

    def _trend_at(self, X: Tensor, F: Tensor) -> Tensor:
        """Φ at points with these rows of F."""
        return basis(X, self._mean) @ self._W - F @ self._BW

    def _trend_of_training(self) -> Tensor:
        if self._F is not None:
            return self._trend_at(self._X, self._F)
        parts = chunks(len(self._X), CHUNK)
        return torch.cat([self._trend_at(self._X[c], self._rows_of_F(self._X[c])) for c in parts])

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
        return factorise(K, float(K.diagonal().max()))
