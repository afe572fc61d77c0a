"""What is known after the data: mean, variance and covariance at new points.

Universal kriging, with weights v = K̂⁻¹ (Y - H β) and, as far as it was solved for, G = K̂⁻¹ H kept:

mean(x) = h(x)ᵀ β + k(x, X) v
var(x) = k(x, x) - k(x, X) K̂⁻¹ k(X, x) + uᵀ (Hᵀ K̂⁻¹ H)⁻¹ u,  u = h(x) - Gᵀ k(X, x)

Where places have effects (place_effect.py), the function is the sum of this and them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from megagp.covariance import Covariance
from megagp.equal_rows import EqualRows
from megagp.kernels import Kernel
from megagp.likelihood import Trend
from megagp.mean import basis
from megagp.operator import KernelOperator
from megagp.posterior.error_scale import Scale
from megagp.posterior.exact_variance import ExactVariance, solve_to_excess
from megagp.posterior.lanczos_variance import LanczosVariance, lanczos_start
from megagp.posterior.left_out import LeftOut, variances_left_out
from megagp.posterior.place_effect import PlaceEffect
from megagp.posterior.subset_variance import SubsetVariance
from megagp.posterior.trend_variance import TrendVariance
from megagp.preconditioners import PivotedCholesky
from megagp.solvers import Cholesky, SolveResult

VARIANCES = ("joint", "lanczos", "exact")
# New points per pass: what a pass holds is a few columns for each of them.
CHUNK = 1 << 16
LANCZOS_RANK = 100
# Pivots that joint variances rest on: as many as what is kept for them (16 bytes for each point
# and pivot, while it is made) takes no more than this.
MOST_PIVOTS, FEWEST_PIVOTS = 500, 256
PIVOT_BUDGET = 512 * 2**20
# Share of what a training point says that may be about the trend alone.
MOST_OF_TREND = 0.9
# What "exact" may add to a variance, as a share of the noise variance, for each unit of rtol.
EXCESS = 2.0


def most_pivots(n: int) -> int:
    """Pivots on which the joint variances of n points may rest."""
    return min(MOST_PIVOTS, max(FEWEST_PIVOTS, PIVOT_BUDGET // (16 * n)))


@dataclass(frozen=True)
class Posterior:
    """All that predictions need, on whitened data.

    X: n x d. noise: n, what K̂ has beyond K. weights: n x p. trend_weights: G, n x q. pivots: the
    points on which the preconditioner and the variance rest. rtol: loosest tolerance of solves for
    exact variances.
    noise_scale: what the noise variance of new observations is multiplied by; None for 1.
    calibration: what all variances at new points are to be multiplied by, noise included; None for
        1. Those below are before that.
    effects: n, the variances of effects of the places X: a part of `noise`, and of the function;
        None for none. place_variance: that of other places, times noise_scale.
    place_noise: n, what the noise variance of new observations at the places X is multiplied by;
        None for 1.
    """

    X: Tensor
    kernel: Kernel
    noise: Tensor
    mean: str
    trend: Trend
    weights: Tensor
    trend_weights: Tensor
    pivots: Tensor
    rtol: float
    max_iter: int
    neighbours: int | None = None
    engine: str = "auto"
    noise_scale: Scale | None = None
    calibration: Scale | None = None
    effects: Tensor | None = None
    place_variance: float = 0.0
    place_noise: Tensor | None = None

    @property
    def d(self) -> int:
        return self.X.shape[1]

    def predict(self, X_new: Tensor) -> Tensor:
        """The mean at new points, m x p. Cost O(m n)."""
        mean = self._products(X_new, self.weights) + self._trend_at(X_new)
        return mean if self._effect is None else self._effect.mean(mean, X_new)

    def predict_with_variance(self, X_new: Tensor, method: str) -> Tensor:
        """Means, and the variance of the latent function, an upper bound on the exact one.

        m x (p + 1), the variances last.
        method: "joint", from the pivots and each point's neighbours; "lanczos", the paper's
        cache; "exact", a solve to tolerance for every new point.
        """
        if method == "joint":
            mean, latent = self.predict(X_new), self._joint.latent(X_new)
        else:
            way: LanczosVariance | ExactVariance
            way = self._lanczos if method == "lanczos" else self._exact
            mean, U = self._mean_and_gap(X_new)
            latent = way.latent(X_new)
            latent = latent + self._of_trend.of(U, latent)
        if self._effect is not None:
            latent = self._effect.variance(latent, X_new)
        return torch.cat([mean, latent[:, None]], dim=1)

    def covariance(self, X_new: Tensor) -> Tensor:
        """The covariance of the latent function between new points, m x m, by solves."""
        _, U = self._mean_and_gap(X_new)
        C = self._exact.covariance(X_new) + U @ self._of_trend.T @ U.T
        C = 0.5 * (C + C.T)
        return C if self._effect is None else self._effect.covariance(C, X_new)

    def noise_at(self, X_new: Tensor, level: float) -> Tensor:
        """The noise variance of new observations, where it is `level` on average."""
        noise = torch.full((len(X_new),), level, dtype=torch.float64)
        if self.place_noise is not None:
            place = self._places.find(X_new)
            noise = torch.where(place < 0, noise, noise * self.place_noise[place])
        return noise if self.noise_scale is None else noise * self.noise_scale.at(X_new)

    def calibration_at(self, X_new: Tensor) -> Tensor:
        """What all variances at new points are to be multiplied by, m.

        1 at places with noise of their own, which that tells: where all rows have agreed, errors
        of other rows would say that there are none.
        """
        if self.calibration is None:
            return torch.ones(len(X_new), dtype=torch.float64)
        factor = self.calibration.at(X_new)
        if self.place_noise is None:
            return factor
        return torch.where(self._places.find(X_new) < 0, factor, 1.0)

    def leave_one_out(self, Y: Tensor, count: int, seed: int) -> LeftOut:
        """About `count` training points, or all, each predicted from all others. Y: n x p."""
        if len(self.pivots) == len(self.X):
            rows = torch.arange(len(self.X))
            variances = 1 / Cholesky(self._K_hat).inverse().diagonal()
        else:
            pivots = self.pivots[: most_pivots(len(self.X))]
            rows, variances = variances_left_out(
                self.X, self.kernel, self.noise, pivots, count, seed
            )
        weights, G = self.weights[rows], self.trend_weights[rows]
        # Those of observations given the others, β included: no prediction knows β better.
        of_trend = ((G @ self.trend.covariance) * G).sum(1) * variances
        variances = variances / (1 - of_trend.clamp(0.0, MOST_OF_TREND))
        mean = self._products(self.X[rows], self.weights) + self._trend_at(self.X[rows])
        residual = Y[rows] - mean - self.noise[rows, None] * weights
        errors = weights * variances[:, None] + residual
        effects = None if self.effects is None else self.effects[rows]
        noise = self.noise[rows] if effects is None else self.noise[rows] - effects
        return LeftOut(rows, errors, variances, noise, residual, effects)

    def solve(self, B: Tensor) -> SolveResult:
        """K̂⁻¹ B for columns of k(X, x), precise enough for their variances.

        A residual r raises the variance by rᵀK̂⁻¹r <= rᵀP⁻¹r, since the preconditioner has
        P ≼ K̂: it leaves a positive semidefinite part of K out. At most EXCESS rtol σ² in all,
        σ² the median: that of a place with many rows is a fraction of one observation's.
        """
        share = EXCESS * min(self.rtol, 0.01)
        limit = torch.full((B.shape[1],), share * float(self.noise.median()), dtype=B.dtype)
        return solve_to_excess(
            self._K_hat, B, self._preconditioner.solve, limit, max_iter=self.max_iter
        )

    def _products(self, X_new: Tensor, V: Tensor) -> Tensor:
        """k(X_new, X) V, m x t, in float64: weights are large where the noise is small."""
        parts = []
        for start in range(0, len(X_new), CHUNK):
            chunk = X_new[start : start + CHUNK]
            K = KernelOperator(chunk, self.kernel, self.X, engine=self.engine, dtype="float64")
            parts.append(K.matmul(V))
        return torch.cat(parts)

    def _trend_at(self, X_new: Tensor) -> Tensor:
        """h(x)ᵀ β, m x p."""
        return basis(X_new, self.mean) @ self.trend.coefficients

    def _mean_and_gap(self, X_new: Tensor) -> tuple[Tensor, Tensor]:
        """The mean, m x p, and u = h(x) - Gᵀ k(X, x), m x q; by one product."""
        p = self.weights.shape[1]
        products = self._products(X_new, torch.cat([self.weights, self._of_trend.G], dim=1))
        mean = products[:, :p] + self._trend_at(X_new)
        if self._effect is not None:
            mean = self._effect.mean(mean, X_new)
        return mean, basis(X_new, self.mean) - products[:, p:]

    @cached_property
    def _places(self) -> EqualRows:
        return EqualRows(self.X)

    @cached_property
    def _effect(self) -> PlaceEffect | None:
        if self.effects is None:
            return None
        return PlaceEffect(
            self.effects,
            self.noise,
            self.weights,
            self._places,
            self.place_variance,
            self.noise_scale,
        )

    @cached_property
    def _K_hat(self) -> Covariance:
        return Covariance(KernelOperator(self.X, self.kernel, engine=self.engine), self.noise)

    @cached_property
    def _preconditioner(self) -> PivotedCholesky:
        return PivotedCholesky(self._K_hat, self.pivots)

    @cached_property
    def _joint(self) -> SubsetVariance:
        # A posterior that was solved by Cholesky has all its points as pivots: that is exact.
        every = len(self.pivots) == len(self.X)
        pivots = self.pivots if every else self.pivots[: most_pivots(len(self.X))]
        return SubsetVariance(
            self.X, self.kernel, self.noise, pivots, mean=self.mean, neighbours=self.neighbours
        )

    @cached_property
    def _of_trend(self) -> TrendVariance:
        return TrendVariance(
            self._K_hat,
            basis(self.X, self.mean),
            self.trend_weights,
            self._preconditioner.solve,
            self.max_iter,
        )

    @cached_property
    def _lanczos(self) -> LanczosVariance:
        K_hat = self._K_hat
        # Y - H β = K̂ v; several outputs share one cache.
        start = lanczos_start(K_hat.matmul(self.weights))
        return LanczosVariance(
            K_hat.matmul, self.X, self.kernel, self.noise, start, rank=LANCZOS_RANK
        )

    @cached_property
    def _exact(self) -> ExactVariance:
        return ExactVariance(self.solve, self._K_hat.precise().matmul, self.X, self.kernel)
