"""From trained hyperparameters to a posterior: the last solve."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from megagp.covariance import Covariance
from megagp.likelihood import Trend, generalised_least_squares
from megagp.posterior.exact_variance import solve_to_excess
from megagp.posterior.posterior import Posterior, most_pivots
from megagp.preconditioners import PivotedCholesky, Preconditioner, random_pivots
from megagp.solvers import Callback, Cholesky, SolveResult, solve
from megagp.training import Objective

# What may be left of the trend's solve in a variance, as a share of the noise variance.
TREND_EXCESS = 1e-5
# Pivots of the bound on what is left, and bytes that they may take.
BOUND_PIVOTS, BOUND_BUDGET = 256, 64 * 2**20


def precompute(
    objective: Objective,
    mean: str,
    *,
    rtol: float,
    max_iter: int,
    neighbours: int | None = None,
    callback: Callback | None = None,
) -> tuple[Posterior, SolveResult]:
    """K̂⁻¹ [Y, H] to rtol in float64 residuals, started from what training left.

    K̂⁻¹ H goes on until what is missing of it hardly shows in any variance.
    """
    Y, H = objective.Y, objective.H
    covariance = objective.covariance()
    B = torch.cat([Y, H], dim=1)
    if len(Y) <= objective.solving.dense_below:
        result = Cholesky(covariance).solve(B)
        pivots = torch.arange(len(Y))
        VY, VH = result.x[:, : Y.shape[1]], result.x[:, Y.shape[1] :]
        trend, excess = generalised_least_squares(H, Y, VH, VY), 0.0
    else:
        P = objective.latest_preconditioner()
        start = None if objective.last is None else objective.last.solutions
        result = solve(
            covariance,
            B,
            P.solve,
            rtol=rtol,
            max_iter=max_iter,
            x0=start,
            callback=callback,
            saver=objective.saver("weights"),
        )
        VY = result.x[:, : Y.shape[1]]
        VH, trend, excess = _trend(covariance, P, H, Y, result.x[:, Y.shape[1] :], VY, max_iter)
        pivots = P.pivots
        wanted = min(len(Y) // 4, most_pivots(len(Y)))
        if len(pivots) < wanted:
            # A rank that serves solves best is less than variances can use.
            rng = np.random.default_rng(objective.seed)
            pivots = random_pivots(covariance.operator, wanted, rng)
    posterior = Posterior(
        X=objective.operator.X,
        kernel=objective.operator.kernel,
        noise=covariance.noise,
        mean=mean,
        trend=trend,
        weights=VY - VH @ trend.coefficients,
        trend_weights=VH.clone(),
        pivots=pivots,
        rtol=rtol,
        max_iter=max_iter,
        neighbours=neighbours,
        engine=objective.solving.engine,
        trend_excess=excess,
    )
    return posterior, result


def _trend(
    covariance: Covariance,
    P: Preconditioner,
    H: Tensor,
    Y: Tensor,
    VH: Tensor,
    VY: Tensor,
    max_iter: int,
) -> tuple[Tensor, Trend, float]:
    """K̂⁻¹ H started from VH, the trend, and e >= tr(T Rᵀ K̂⁻¹ R) of the residual R that is left.

    With M = Rᵀ K̂⁻¹ R, tr(T M) <= (Σ (T_jj M_jj)^½)², so that M_jj <= e / (q² T_jj) is enough.
    """
    if not H.shape[1]:
        return VH, generalised_least_squares(H, Y, VH, VY), 0.0
    T = generalised_least_squares(H, Y, VH, VY).covariance
    prior = float(covariance.operator.diagonal().mean())
    wanted = TREND_EXCESS * float(covariance.noise.median()) / prior
    limit = wanted / (H.shape[1] ** 2 * T.diagonal().clamp(min=1e-300))
    found = solve_to_excess(covariance, H, P.solve, limit, max_iter=max_iter, x0=VH)
    assert found.R is not None
    trend = generalised_least_squares(H, Y, found.x, VY, found.R)
    return found.x, trend, _excess(covariance, P, trend.covariance, found.R)


def _excess(covariance: Covariance, P: Preconditioner, T: Tensor, R: Tensor) -> float:
    """tr(T Rᵀ P⁻¹ R) for a P ≼ K̂: L Lᵀ of some pivots leaves a part of K out."""
    if not isinstance(P, PivotedCholesky):
        most = min(BOUND_PIVOTS, BOUND_BUDGET // (8 * len(covariance)))
        P = PivotedCholesky(covariance, P.pivots[:most])
    M = covariance.ranks.agree(R.T @ P.solve(R))
    return max(0.0, float((T * M).sum()))
