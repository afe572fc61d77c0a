"""From trained hyperparameters to a posterior: the last solve."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from megagp.likelihood import generalised_least_squares
from megagp.posterior.posterior import Posterior, most_pivots
from megagp.preconditioners import random_pivots
from megagp.solvers import Callback, Cholesky, SolveResult, solve
from megagp.training import Objective

# What residuals may be of the noise that places of their own have, in root mean square. A residual
# is an error of the mean, where that follows the data, and most such places claim to know theirs.
NOISE_SHARE = 0.03


def precompute(
    objective: Objective,
    mean: str,
    *,
    rtol: float,
    max_iter: int,
    neighbours: int | None = None,
    callback: Callback | None = None,
) -> tuple[Posterior, SolveResult]:
    """K̂⁻¹ [Y, H] to rtol in float64 residuals, started from what training left."""
    Y, H = objective.Y, objective.H
    covariance = objective.covariance()
    B = torch.cat([Y, H], dim=1)
    if len(Y) <= objective.solving.dense_below:
        result = Cholesky(covariance).solve(B)
        pivots = torch.arange(len(Y))
    else:
        P = objective.latest_preconditioner()
        start = None if objective.last is None else objective.last.solutions
        result = solve(
            covariance,
            B,
            P.solve,
            rtol=_tolerances(objective, covariance.noise, B, rtol),
            max_iter=max_iter,
            x0=start,
            callback=callback,
            saver=objective.saver("weights"),
        )
        pivots = P.pivots
        wanted = min(len(Y) // 4, most_pivots(len(Y)))
        if len(pivots) < wanted:
            # A rank that serves solves best is less than variances can use.
            rng = np.random.default_rng(objective.seed)
            pivots = random_pivots(covariance.operator, wanted, rng)
    VY, VH = result.x[:, : Y.shape[1]], result.x[:, Y.shape[1] :]
    left = None if result.R is None else result.R[:, Y.shape[1] :]
    trend = generalised_least_squares(H, Y, VH, VY, left)
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
        place_variance=0.0
        if objective.effects is None
        else float(objective.effects.variance.value),
        effects=covariance.effects,
    )
    return posterior, result


def _tolerances(objective: Objective, noise: Tensor, B: Tensor, rtol: float) -> Tensor:
    """On ‖r‖ / ‖b‖, for each column [Y, H].

    Weights K̂⁻¹ (Y - H β) have the residual r_Y - r_H β: columns of H are solved so far that β is no
    reason for more. Of places that have noise of their own, D on the diagonal of K̂ = K + D: with
    C = K - K K̂⁻¹ K the covariance of the mean and K K̂⁻¹ r its error, that is off by
    rᵀ K̂⁻¹ K D⁻¹ r <= rᵀ D⁻¹ r, relative to what is not known of it.
    """
    p, size = objective.Y.shape[1], B.norm(dim=0).clamp(min=1e-300)
    allowed = rtol * size
    if objective.effects is not None:
        limit = NOISE_SHARE * (len(noise) / float((1 / noise).mean())) ** 0.5
        allowed[:p] = allowed[:p].clamp(max=limit)
    if objective.last is not None:
        beta = objective.last.trend.coefficients.abs().clamp(min=1e-300)
        allowed[p:] = allowed[p:].minimum((allowed[:p] / beta).amin(dim=1))
    found: Tensor = allowed / size
    return found
