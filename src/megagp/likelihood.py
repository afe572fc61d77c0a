"""The log marginal likelihood and its gradient, from one batched solve.

log p(Y) = -½ Σ eᵀ K̂⁻¹ e - p/2 log|K̂| - n p/2 log 2π,  e = Y - H β,
with β by generalised least squares: (Hᵀ K̂⁻¹ H) β = Hᵀ K̂⁻¹ Y. At that β the derivative
by β is zero, so the gradient by the hyperparameters needs no term for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from megagp.covariance import Covariance
from megagp.kernels import contract
from megagp.lanczos import log_quadratic_forms
from megagp.preconditioners import Preconditioner
from megagp.solvers import PATIENCE, Callback, Cholesky, Saver, SolveResult, pcg, solve

# Directions in which the columns of H are dependent get the coefficient 0.
DEPENDENT = 1e-10
# With entries in float32, and float64 to go over to: a solve is given up after so many iterations
# without progress, or, with probes, so many in all.
FLOAT32_PATIENCE, FLOAT32_ITERATIONS = 15, 60
# Where y is refined: by how much float32 reduces a residual before that is evaluated in float64.
REFINED_BY = 0.1


@dataclass(frozen=True)
class Trend:
    """The mean H β: coefficients q x p, and (Hᵀ K̂⁻¹ H)⁻¹, q x q, their covariance."""

    coefficients: Tensor
    covariance: Tensor


@dataclass(frozen=True)
class Evaluation:
    """The likelihood at one setting of the hyperparameters.

    value: total over the p columns of Y. gradient: by the logarithm of every hyperparameter
    that is not frozen, "noise_variance" among them, and "place_variance" if there is one.
    standard_error: of `value`, from the
    spread of the probes; 0 for the dense way. weights: K̂⁻¹ (Y - H β), n x p.
    solutions: K̂⁻¹ [Y, H], to start the next solve from. refined: those were held to residuals in
    float64. rounding: what entries in float32 have changed in `value`, at most about, where that
    was asked for.
    """

    value: float
    gradient: dict[str, Tensor]
    standard_error: float
    trend: Trend
    weights: Tensor
    solutions: Tensor
    solve: SolveResult
    refined: bool = False
    rounding: float = 0.0


def generalised_least_squares(
    H: Tensor, Y: Tensor, VH: Tensor, VY: Tensor, R: Tensor | None = None
) -> Trend:
    """β and its covariance from VH = K̂⁻¹ H and VY = K̂⁻¹ Y.

    R: H - K̂ VH, where VH is not exact, leaves errors of second order: with the residual S of VY,
    Hᵀ K̂⁻¹ H = VHᵀ H + Rᵀ VH + Rᵀ K̂⁻¹ R,  Hᵀ K̂⁻¹ Y = VHᵀ Y + Rᵀ VY + Rᵀ K̂⁻¹ S,
    and the covariance is one from above.
    """
    A, B = H.T @ VH, H.T @ VY
    if R is not None:
        A, B = A + VH.T @ R, VH.T @ Y + R.T @ VY
    # A column of zeros has the coefficient 0 too.
    scale = torch.where(A.diagonal() > 0, A.diagonal().clamp(min=1e-300).rsqrt(), 0.0)
    eigenvalues, Q = torch.linalg.eigh(scale[:, None] * (0.5 * (A + A.T)) * scale)
    kept = eigenvalues > DEPENDENT * len(A)
    Q = scale[:, None] * Q[:, kept]
    inverse = (Q / eigenvalues[kept]) @ Q.T
    return Trend(inverse @ B, inverse)


def stochastic(
    covariance: Covariance,
    Y: Tensor,
    H: Tensor,
    preconditioner: Preconditioner,
    generator: torch.Generator,
    *,
    probes: int = 10,
    rtol: float = 0.01,
    probe_rtol: float | None = None,
    max_iter: int = 1000,
    min_iter: int = 0,
    start: Tensor | None = None,
    callback: Callback | None = None,
    saver: Saver | None = None,
    precise: Covariance | None = None,
    precise_saver: Saver | None = None,
    refine: bool = False,
    weigh_rounding: bool = False,
) -> Evaluation:
    """Value and gradient by PCG on [Y, H, Z] with probes z ~ N(0, P).

    log|K̂| = log|P| + E zᵀ P^-½ log(P^-½ K̂ P^-½) P^-½ z   (lanczos.py)
    tr(K̂⁻¹ ∂K̂) = E (K̂⁻¹ z)ᵀ ∂K̂ (P⁻¹ z)

    rtol is for Y and H, whose errors go straight into the gradient; probe_rtol (rtol if None)
    for the probes, which are noise anyway, and meet it in their root mean square.
    precise: K̂ with entries in float64, for residuals of Y and H: with `refine` from the start, else
    where they have not converged and the probes have. Y needs it first, being no draw from P.
    With it, solves with `covariance` give up early.
    weigh_rounding: say by one product of `precise` what the entries of `covariance` change.
    """
    n, p, q = len(Y), Y.shape[1], H.shape[1]
    Z = preconditioner.sample(probes, generator)
    known = torch.cat([Y, H], dim=1)
    refine = refine and precise is not None
    B = torch.cat([known, Z], dim=1)
    # Only Y and H may start from what is known: the quadrature needs its probes from zero.
    x0 = None
    if start is not None:
        x0 = torch.zeros_like(B)
        x0[:, : p + q] = start
    tolerance = B.new_full((B.shape[1],), rtol if probe_rtol is None else probe_rtol)
    tolerance[: p + q] = max(rtol, REFINED_BY) if refine else rtol
    result = pcg(
        covariance.matmul,
        B,
        precondition=preconditioner.solve,
        rtol=tolerance,
        pooled=slice(p + q, None),
        x0=x0,
        verify=False,
        min_iter=min_iter,
        max_iter=max_iter if precise is None else min(max_iter, FLOAT32_ITERATIONS),
        patience=PATIENCE if precise is None else FLOAT32_PATIENCE,
        ranks=covariance.ranks,
        natural=True,
        callback=callback,
        saver=saver,
    )
    drawn = result.columns(slice(p + q, None))
    if precise is not None and drawn.converged and (refine or not result.converged):
        before = result.columns(slice(p + q))
        fixed = solve(
            covariance,
            known,
            preconditioner.solve,
            rtol=rtol,
            max_iter=max_iter,
            x0=before.x,
            gain=REFINED_BY,
            patience=FLOAT32_PATIENCE,
            precise=precise,
            natural=True,
            callback=callback,
            saver=precise_saver,
        )
        fixed = replace(fixed, iterations=fixed.iterations + before.iterations)
        result, refine = fixed.beside(drawn), True
    else:
        refine = False
    VY, VH, VZ = result.x[:, :p], result.x[:, p : p + q], result.x[:, p + q :]
    trend = generalised_least_squares(H, Y, VH, VY)
    V = VY - VH @ trend.coefficients
    assert result.coefficients is not None
    assert result.R is not None
    # eᵀK̂⁻¹e - (2eᵀv - vᵀK̂v) = (v - K̂⁻¹e)ᵀK̂(v - K̂⁻¹e): of second order in the error of v,
    # wherever the solve started. With r = e - K̂v it is eᵀv + vᵀr.
    R = result.R[:, :p] - result.R[:, p : p + q] @ trend.coefficients
    quadratic = float(((Y - H @ trend.coefficients + R) * V).sum())
    forms = log_quadratic_forms(result.coefficients, slice(p + q, None))
    logdet = preconditioner.logdet() + float(forms.mean())
    error = 0.5 * p * float(forms.std()) / math.sqrt(probes) if probes > 1 else math.inf
    U = torch.cat([0.5 * V, (-0.5 * p / probes) * VZ], dim=1)
    W = torch.cat([V, preconditioner.solve(Z)], dim=1)
    gradient = _by_logarithm(covariance, U, W)
    rounding = 0.0
    if weigh_rounding and precise is not None and result.converged:
        # K̃ x - K̂ x, from the residuals of both.
        R = torch.cat([R, result.R[:, p + q :]], dim=1)
        B = torch.cat([Y - H @ trend.coefficients, Z], dim=1)
        E = B - precise.matmul(torch.cat([V, VZ], dim=1)) - R
        rounding = _rounding(E, preconditioner.solve(E), W, p)
    return Evaluation(
        -0.5 * (quadratic + p * logdet + n * p * math.log(2 * math.pi)),
        gradient,
        error,
        trend,
        V,
        result.x[:, : p + q],
        result,
        refine,
        rounding,
    )


def _rounding(E: Tensor, PE: Tensor, W: Tensor, p: int) -> float:
    """How much K̃ = K̂ + E in the place of K̂ changes the log likelihood, at most about.

    E: (K̃ - K̂) v for the p columns of weights v = K̃⁻¹ e, then for the solutions x = K̃⁻¹ z; PE:
    P⁻¹ E; W: those weights, then P⁻¹ z. To second order, with P in the place of K̃ there,
        eᵀK̂⁻¹e - eᵀK̃⁻¹e = vᵀEv + vᵀEK̃⁻¹Ev
        log|K̃| - log|K̂| = tr K̃⁻¹E + ½ tr (K̃⁻¹E)² = E_z (P⁻¹z)ᵀEx + ½ (Ex)ᵀK̃⁻¹(Ex).
    The first terms cancel but for chance, if y is like a draw from N(0, K̂).
    """
    first, second = (W * E).sum(0), (PE * E).sum(0)
    change = float(first[:p].sum() - p * first[p:].mean())
    return 0.5 * (abs(change) + float(second[:p].sum() + 0.5 * p * second[p:].mean()))


def dense(covariance: Covariance, Y: Tensor, H: Tensor) -> Evaluation:
    """Value and gradient by Cholesky, in float64; O(n³)."""
    n, p = Y.shape
    factor = Cholesky(covariance)
    result = factor.solve(torch.cat([Y, H], dim=1))
    VY, VH = result.x[:, :p], result.x[:, p:]
    trend = generalised_least_squares(H, Y, VH, VY)
    V = VY - VH @ trend.coefficients
    quadratic = float(((Y - H @ trend.coefficients) * V).sum())
    # d log p / dK̂ = ½ (V Vᵀ - p K̂⁻¹)
    G = 0.5 * (V @ V.T - p * factor.inverse())
    gradient = _dense_gradient(covariance, G)
    return Evaluation(
        -0.5 * (quadratic + p * factor.logdet() + n * p * math.log(2 * math.pi)),
        gradient,
        0.0,
        trend,
        V,
        result.x,
        result,
    )


def _by_logarithm(covariance: Covariance, U: Tensor, W: Tensor) -> dict[str, Tensor]:
    """The derivative of Σ Uᵀ K̂ W by the logarithm of each hyperparameter."""
    values = covariance.operator.kernel.values()
    by_value = covariance.operator.gradient(U, W)
    gradient = {name: g * values[name].detach() for name, g in by_value.items()}
    return gradient | _of_diagonal(covariance, (U * W).sum(1))


def _dense_gradient(covariance: Covariance, G: Tensor) -> dict[str, Tensor]:
    """The derivative of Σ G * K̂ by the logarithm of each hyperparameter."""
    operator = covariance.operator
    values = operator.kernel.values()
    by_value = contract(operator.kernel, operator.X, G)
    gradient = {name: g * values[name].detach() for name, g in by_value.items()}
    return gradient | _of_diagonal(covariance, G.diagonal())


def _of_diagonal(covariance: Covariance, g: Tensor) -> dict[str, Tensor]:
    """The derivative of gᵀ diag(K̂) by the logarithms of the variances that are not K's."""
    noise, effects = covariance.noise, covariance.effects
    if effects is None:
        return {"noise_variance": g @ noise}
    return {"noise_variance": g @ (noise - effects), "place_variance": g @ effects}
