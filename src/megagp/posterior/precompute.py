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

# What residuals may be of the noise, in root mean square: a residual is an error of the mean, where
# that follows the data, and no deviation is less than the noise's: its square grows by 4 % at most.
# Where places have noise of their own: most of those claim to know theirs.
NOISE_SHARE, OWN_NOISE_SHARE = 0.2, 0.03
# The former asks for no less than this share of rtol.
TIGHTER = 0.1


def precompute(
    objective: Objective,
    mean: str,
    *,
    rtol: float,
    max_iter: int,
    neighbours: int | None = None,
    callback: Callback | None = None,
) -> tuple[Posterior, SolveResult, Tensor]:
    """K̂⁻¹ [Y, H] in float64 residuals, started from what training left.

    To rtol, or less where noise is small: the tolerance of each column comes last.
    """
    Y, H = objective.Y, objective.H
    covariance = objective.covariance()
    B = torch.cat([Y, H], dim=1)
    tolerances = _tolerances(objective, covariance.noise, B, rtol)
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
            rtol=tolerances,
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
    return posterior, result, tolerances


def _tolerances(objective: Objective, noise: Tensor, B: Tensor, rtol: float) -> Tensor:
    """On ‖r‖ / ‖b‖, for each column [Y, H].

    Weights K̂⁻¹ (Y - H β) have the residual r_Y - r_H β: columns of H are solved so far that β is no
    reason for more. With D the noise, K̂ = K + D, C = K - K K̂⁻¹ K the covariance of the mean and
    K K̂⁻¹ r its error, the mean is off by rᵀ K̂⁻¹ K D⁻¹ r <= rᵀ D⁻¹ r, relative to what is not known
    of it.
    """
    p, size = objective.Y.shape[1], B.norm(dim=0).clamp(min=1e-300)
    allowed = rtol * size
    deviation = (len(noise) / float((1 / noise).mean())) ** 0.5  # of all noise, as a length
    if objective.effects is None:
        least = (TIGHTER * allowed[:p]).clamp(min=NOISE_SHARE * deviation)
        allowed[:p] = allowed[:p].minimum(least)
    else:
        allowed[:p] = allowed[:p].clamp(max=OWN_NOISE_SHARE * deviation)
    if objective.last is not None:
        beta = objective.last.trend.coefficients.abs().clamp(min=1e-300)
        allowed[p:] = allowed[p:].minimum((allowed[:p] / beta).amin(dim=1))
    found: Tensor = allowed / size
    return found
