"""Variances of the new points of a cell from one factorisation, which is kept.

With the pivots eliminated, the training points N of a cell have the covariance

    S = K_NN + diag(noise_N) - F_N F_Nᵀ,    and    c = k(N, x) - F_N b    with the new point x.

The variance given the pivots and N is k(x, x) - |b|² - |L⁻¹c|², L Lᵀ = S. What is not known of the
mean adds Φ Φᵀ to these covariances, with a row of Φ for each point.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megagp.engines.native import FAMILIES, ComponentInput, component_inputs
from megagp.kernels import Kernel, Linear
from megagp.neighbours import chunks
from megagp.operator import KernelOperator

# More noise means less information, hence more variance: with jitter the bound still holds.
# As shares of the largest prior variance.
JITTERS = (0.0, 1e-14, 1e-12, 1e-10, 1e-8)

# JointQuality of native/joint_ops.h: a factor that gives a bound, and one close to the best.
ROUGH, GOOD = 1, 2

# Neighbours of the runs that the native core works on at a time: so many rows of F at most.
ROWS_AT_ONCE = 1 << 16

Nearest: TypeAlias = Callable[[int], Tensor]  # a cell to its training points
Run: TypeAlias = tuple[int, slice]  # a cell and where its new points are


class RowsOfF(NamedTuple):
    """F at training points `rows`, and at which of those the points asked for are."""

    rows: Tensor | slice
    F: Tensor
    where: Tensor


GetRows: TypeAlias = Callable[[Tensor], RowsOfF]


class New(NamedTuple):
    """New points: x, t x d; prior: t, their variances; B: t x k, rows of F; trend: Φ, t x q."""

    x: Tensor
    prior: Tensor
    B: Tensor
    trend: Tensor

    def at(self, rows: Tensor) -> New:
        return New(*(each[rows] for each in self))


class CellFactors(ABC):
    """Abstract: new points by cell; factors that are kept take no more than `budget` bytes.

    X, noise: the training points that are no pivots. trend: Φ at those, n x q; None for none.
    instruction_set: of the native core, for those that use it; empty for the best the machine has.
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Tensor,
        noise: Tensor,
        rows_of_F: GetRows,
        nearest: Nearest,
        budget: int,
        trend: Tensor | None = None,
        instruction_set: str = "",
    ) -> None:
        self._kernel, self._X, self._noise = kernel, X, noise
        self._trend = X.new_zeros(len(X), 0) if trend is None else trend
        self._rows_of_F, self._nearest = rows_of_F, nearest
        self._budget, self._instruction_set = budget, instruction_set
        self._kept: dict[int, Any] = {}

    @abstractmethod
    def variances(self, new: New, cell: Tensor) -> Tensor:
        """Latent variances of new points that come sorted by cell; cell: t."""

    @abstractmethod
    def make(self, cells: Sequence[int]) -> None:
        """The factors of `cells` ahead of new points, if they are kept."""

    def _parts(self, runs: list[Run]) -> list[list[Run]]:
        """`runs` in parts whose rows of F need not be many."""
        if not runs:
            return []
        size = max(torch.get_num_threads(), ROWS_AT_ONCE // len(self._nearest(runs[0][0])))
        return [runs[part] for part in chunks(len(runs), size)]

    def _given(self, runs: list[Run], new: New) -> tuple[Tensor, Any]:
        """Which new points are those of `runs`, and what the native core takes first."""
        at = torch.cat([torch.arange(run.start, run.stop) for _, run in runs])
        N = [self._nearest(c) for c, _ in runs]
        rows, F, where = self._rows_of_F(torch.cat(N))
        return at, (
            self._components(rows, new.x[at], new.trend[at]),
            as_array(self._noise[rows]),
            as_array(F),
            as_array(new.prior[at]),
            as_array(new.B[at]),
            np.cumsum([run.stop - run.start for _, run in runs]),
            [as_array(part) for part in torch.split(where, [len(near) for near in N])],
        )

    def _components(self, rows: Tensor | slice, x: Tensor, trend: Tensor) -> list[ComponentInput]:
        """Terms of the covariance between training points and new ones, for the native core."""
        terms = component_inputs(self._kernel, self._X[rows], x)
        if trend.shape[1]:
            Phi = self._trend[rows]
            terms.append((FAMILIES[Linear], 1.0, 1.0, as_array(Phi), as_array(trend)))
        return terms

    def _keep(self, cell: int, factor: Any, size: int) -> None:
        if size <= self._budget:
            self._budget -= size
            self._kept[cell] = factor


class DenseFactors(CellFactors):
    """By torch, in float64; kept first come first served."""

    def variances(self, new: New, cell: Tensor) -> Tensor:
        out = new.prior - new.B.square().sum(dim=1)
        for c, rows in runs_of(cell):
            N, F_N, L = self._get(c)
            K = KernelOperator(self._X[N], self._kernel, new.x[rows], dtype="float64").block()
            K.addmm_(F_N, new.B[rows].T, alpha=-1).addmm_(self._trend[N], new.trend[rows].T)
            a = torch.linalg.solve_triangular(L, K, upper=False)
            out[rows] -= a.square().sum(dim=0)
        return out

    def make(self, cells: Sequence[int]) -> None:
        for c in cells:
            self._get(c)

    def _get(self, cell: int) -> tuple[Tensor, Tensor, Tensor]:
        """N, F_N and L."""
        N = self._nearest(cell)
        _, F, where = self._rows_of_F(N)
        L = self._kept.get(cell)
        if L is None:
            L = self._factorise(N, F[where])
            self._keep(cell, L, 8 * L.numel())
        return N, F[where], L

    def _factorise(self, N: Tensor, F_N: Tensor) -> Tensor:
        S = KernelOperator(self._X[N], self._kernel, dtype="float64").block()
        scale = float(S.diagonal().max())
        S.diagonal().add_(self._noise[N])
        Phi = self._trend[N]
        return factorise(S.addmm_(F_N, F_N.T, alpha=-1).addmm_(Phi, Phi.T), scale)


def factorise(S: Tensor, scale: float) -> Tensor:
    """chol(S), with shares of `scale` added to its diagonal where rounding has taken too much."""
    for jitter in JITTERS:
        S.diagonal().add_(jitter * scale)
        L, info = torch.linalg.cholesky_ex(S)
        if not int(info):
            factor: Tensor = L
            return factor
    raise not_positive()


def runs_of(cell: Tensor) -> list[Run]:
    """Each cell and where its new points are, of sorted numbers of cells."""
    found, counts = torch.unique_consecutive(cell, return_counts=True)
    ends = counts.cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    return [(c, slice(i, j)) for c, i, j in zip(found.tolist(), starts, ends, strict=True)]


def scale_of(kernel: Kernel, X: Tensor) -> float:
    """What jitter is a share of, for kernels that the native core supports."""
    return sum(outputscale for _, outputscale, *_ in component_inputs(kernel, X[:0], X[:0]))


def as_array(T: Tensor) -> NDArray[Any]:
    """As the native core takes it."""
    found: NDArray[Any] = T.detach().contiguous().numpy()
    return found


def not_positive() -> ValueError:
    return ValueError(
        f"noise: expected a covariance that is positive definite, got one that is not even with "
        f"{JITTERS[-1]:g} of the kernel's size added; raise the noise variance"
    )
