"""Titsias' collapsed bound and its gradient, in two passes over the data.

With K(Z, Z) + jitter = L Lᵀ, A = L⁻¹ K(Z, X), P = A Aᵀ, B = I + P / σ², e = Y - H β, F = A e:

bound = -n p/2 log 2πσ² - p/2 log|B| - tr(eᵀe) / 2σ² + tr(Fᵀ B⁻¹ F) / 2σ⁴
        - p/2σ² (Σ k(x, x) - tr P)

(Titsias 2009, eq. 9), with β by generalised least squares under Q̂ = Aᵀ A + σ² I, so that no
derivative by β is needed. The first pass adds up K(Z, X) K(X, Z) and K(Z, X) [Y, H]; the second
pulls the derivative by K(X, Z) back to hyperparameters and Z. Both are sums over rows of X, which
ranks share out. With b = B⁻¹ F:

∂/∂K(X, Z) = K(X, Z) C + e αᵀ / σ²,  C = L⁻ᵀ (p/σ² (I - B⁻¹) - b bᵀ / σ⁶) L⁻¹,  α = L⁻ᵀ b / σ²
∂/∂K(Z, Z) = -½ L⁻ᵀ (p (B⁻¹ - I + P / σ²) + b bᵀ / σ⁴) L⁻¹

Time O(n m²), memory O(m² + n) and a tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from megagp.approximate.cross import Tiles
from megagp.approximate.factor import Factor, factorise
from megagp.distributed import ALONE, Ranks
from megagp.likelihood import Trend, generalised_least_squares

# Columns of K(Z, X) K(X, Z) at a time.
STRIP = 128


@dataclass(frozen=True)
class Moments:
    """What the first pass leaves of the data, at one setting of the hyperparameters.

    P: A Aᵀ, m x m. F: A [Y, H], m x (p + q). T: [Y, H]ᵀ [Y, H]. trace: Σ k(x, x).
    """

    factor: Factor
    P: Tensor
    F: Tensor
    T: Tensor
    trace: float


@dataclass(frozen=True)
class Collapsed:
    """The bound at one setting, and what follows from it.

    value: summed over the p columns of Y. weights: α, m x p, and trend_weights, m x q, the same
    for H. R: m x m with S = Rᵀ R the covariance of the whitened inducing values.
    """

    value: float
    factor: Factor
    noise_variance: float
    trend: Trend
    weights: Tensor
    trend_weights: Tensor
    R: Tensor
    moments: Moments
    B: Tensor


def moments(tiles: Tiles, TH: Tensor, share: float, ranks: Ranks = ALONE) -> Moments:
    """One pass over the rows that this rank has of X (n x d) and TH = [Y, H] (n x (p + q))."""
    cross = tiles.cross
    m = len(cross.Z)
    Phi = torch.zeros(m, m, dtype=torch.float64)
    KT = torch.zeros(m, TH.shape[1], dtype=torch.float64)
    for rows, K in tiles.blocks():
        # The lower triangle; the upper one is the same.
        for j in range(0, m, STRIP):
            Phi[j:, j : j + STRIP].addmm_(K[:, j:].T, K[:, j : j + STRIP])
        KT.addmm_(K.T, TH[rows])
    Phi = Phi.tril() + Phi.tril(-1).T
    trace = cross.kernel.diagonal(tiles.X).detach().sum()
    Phi, KT, T, trace = (ranks.sum(part) for part in (Phi, KT, TH.T @ TH, trace))
    factor = factorise(cross.square(), share, ranks)
    half = factor.solve(Phi)
    P = factor.solve(half.T)
    return Moments(factor, 0.5 * (P + P.T), factor.solve(KT), T, float(trace))


def collapse(
    found: Moments, n: int, p: int, noise_variance: float, ranks: Ranks = ALONE
) -> Collapsed:
    """The bound for n observations of p outputs from the moments of the data."""
    s, m = noise_variance, len(found.P)
    B = found.P / s
    B.diagonal().add_(1.0)
    # Whether there is a factor is for rank 0 to say: roundoff may differ from rank to rank.
    C = ranks.from_first(lambda: ({}, {"C": _root(B, s)}))[1]["C"]
    # Q̂⁻¹ = (I - Aᵀ B⁻¹ A / σ²) / σ², between all columns of Y and H.
    inner = (found.T - found.F.T @ torch.cholesky_solve(found.F, C) / s) / s
    YY, HY, HH = inner[:p, :p], inner[p:, :p], inner[p:, p:]
    trend = _least_squares(HH, HY)
    beta = trend.coefficients
    # eᵀ Q̂⁻¹ e = Yᵀ Q̂⁻¹ Y - βᵀ Hᵀ Q̂⁻¹ Y at this β.
    fit = float(YY.diagonal().sum() - (HY * beta).sum())
    value = -0.5 * (
        n * p * math.log(2 * math.pi * s)
        + p * float(2 * C.diagonal().log().sum())
        + fit
        + p * (found.trace - float(found.P.diagonal().sum())) / s
    )
    alpha = found.factor.solve_transposed(torch.cholesky_solve(found.F, C)) / s
    R = torch.linalg.solve_triangular(C, torch.eye(m, dtype=C.dtype), upper=False)
    return Collapsed(
        value=value,
        factor=found.factor,
        noise_variance=s,
        trend=trend,
        weights=alpha[:, :p] - alpha[:, p:] @ beta,
        trend_weights=alpha[:, p:].clone(),
        R=R,
        moments=found,
        B=B,
    )


def gradient(
    at: Collapsed, tiles: Tiles, TH: Tensor, n: int, p: int, ranks: Ranks = ALONE
) -> tuple[dict[str, Tensor], Tensor]:
    """Of the bound: by the value of each hyperparameter ("noise_variance" among them), and by Z.

    tiles, TH: of the rows that this rank has, of n.
    """
    cross, X = tiles.cross, tiles.X
    found, factor, s, m = at.moments, at.factor, at.noise_variance, len(at.moments.P)
    coefficients = torch.cat([torch.eye(p, dtype=torch.float64), -at.trend.coefficients])
    F = found.F @ coefficients
    S = at.R.T @ at.R  # B⁻¹
    b = S @ F
    inner = -p / s * S - (b @ b.T) / s**3
    inner.diagonal().add_(p / s)
    C = factor.pull(inner)
    M = p * (S + found.P / s) + (b @ b.T) / s**2
    M.diagonal().sub_(p)
    D = -0.5 * factor.pull(M)
    errors = TH @ coefficients / s

    def weight(rows: slice, K: Tensor) -> Tensor:
        return torch.addmm(errors[rows] @ at.weights.T, K, C)

    by_rows = tiles.derivative(weight) + cross.diagonal_derivative(X, -0.5 * p / s, 0.0)
    # The jitter is a share of the mean of k(z, z), and moves with it.
    jitter = factor.share * float(D.diagonal().sum()) / m
    by_square = cross.square_derivative(D) + cross.diagonal_derivative(X[:0], 0.0, jitter)
    total = by_rows.summed(ranks) + by_square
    by_name = total.hyperparameters
    squares = float((coefficients.T @ found.T @ coefficients).diagonal().sum())
    fitted, twice = float((F * b).sum()), float((b * b).sum())
    leftover = found.trace - float(found.P.diagonal().sum())
    by_name["noise_variance"] = torch.tensor(
        0.5 * p * (m - float(S.diagonal().sum()) - n) / s
        + 0.5 * squares / s**2
        - 0.5 * (fitted + twice) / s**3
        + 0.5 * p * leftover / s**2,
        dtype=torch.float64,
    )
    return by_name, total.Z


def _root(B: Tensor, noise_variance: float) -> Tensor:
    """The Cholesky factor of B = I + A Aᵀ / σ²."""
    C, info = torch.linalg.cholesky_ex(B)
    if int(info):
        raise ValueError(
            f"jitter: expected I + A Aᵀ / noise to be positive definite, got a failed pivot at row "
            f"{int(info)} with noise variance {noise_variance:.2g}; raise jitter or noise_floor"
        )
    found: Tensor = C
    return found


def _least_squares(HH: Tensor, HY: Tensor) -> Trend:
    """β and its covariance from Hᵀ Q̂⁻¹ H and Hᵀ Q̂⁻¹ Y."""
    q = len(HH)
    # As if H were the identity: its products are what is known.
    eye = torch.eye(q, dtype=HH.dtype)
    return generalised_least_squares(eye, eye, HH, HY)
