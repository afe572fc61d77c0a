"""Titsias' collapsed bound and its gradient, in two passes over the data.

With K(Z, Z) + jitter = L Lᵀ, A = L⁻¹ K(Z, X), P = A Aᵀ, B = I + P / σ², e = Y - H β, F = A e:

bound = -n p/2 log 2πσ² - p/2 log|B| - tr(eᵀe) / 2σ² + tr(Fᵀ B⁻¹ F) / 2σ⁴
        - p/2σ² (Σ k(x, x) - tr P)

(Titsias 2009, eq. 9), with β by generalised least squares under Q̂ = Aᵀ A + σ² I, so that no
derivative by β is needed. The first pass adds up P and A [Y, H]; the second pulls the derivative by
K(X, Z) back to hyperparameters and Z. Both are sums over rows of X, which ranks share out. With
u = B⁻¹ F / σ², so that Aᵀ u is the mean at X, and α = L⁻ᵀ u:

∂/∂K(X, Z) = Aᵀ N L⁻¹ + (e - Aᵀ u) αᵀ / σ²,  N = p/σ² (I - B⁻¹)
∂/∂K(Z, Z) = -½ L⁻ᵀ (p (B⁻¹ - I + P / σ²) + u uᵀ) L⁻¹

Where tiles are float64, A is not formed: P = L⁻¹ (K(Z, X) K(X, Z)) L⁻ᵀ and Aᵀ N L⁻¹ = K(X, Z) C,
C = L⁻ᵀ N L⁻¹, are the fewest products. With eigenvalues of K(Z, Z) down to the jitter j, L⁻¹ on
both sides magnifies what was rounded in them 1/j times: 10⁶, too much for float32. Where tiles are
float32, A is formed, in which L⁻¹ magnifies rounding 1/√j times at most, and P and the derivative
by K(X, Z) are products of it. m x m matrices and sums over tiles are float64 in both.

Time O(n m²), memory O(m² + n) and a tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from megagp.approximate.cross import Tiles, Weight
from megagp.approximate.factor import Factor
from megagp.approximate.triangular import (
    gram,
    inverse_cholesky,
    lower_product,
    mirrored,
    triangular_product,
)
from megagp.distributed import ALONE, Ranks
from megagp.likelihood import Trend, generalised_least_squares

# Columns of K(Z, X) K(X, Z) at a time.
STRIP = 128
# Rows of A in float64 at a time.
THIN = 128


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


def moments(tiles: Tiles, TH: Tensor, factor: Factor, ranks: Ranks = ALONE) -> Moments:
    """One pass over the rows that this rank has of X (n x d) and TH = [Y, H] (n x (p + q)).

    factor: of K(Z, Z).
    """
    whitened = tiles.room.dtype != torch.float64
    square, thin = (_whitened if whitened else _plain)(tiles, TH, factor)
    trace = tiles.cross.kernel.diagonal(tiles.X).detach().sum()
    square, thin, T, trace = (ranks.sum(part) for part in (square, thin, TH.T @ TH, trace))
    square = mirrored(square.tril())
    if not whitened:
        half = factor.solve(square)
        P = factor.solve(half.T)
        square, thin = 0.5 * (P + P.T), factor.solve(thin)
    return Moments(factor, square, thin, T, float(trace))


def collapse(
    found: Moments, n: int, p: int, noise_variance: float, ranks: Ranks = ALONE
) -> Collapsed:
    """The bound for n observations of p outputs from the moments of the data."""
    s = noise_variance
    B = found.P / s
    B.diagonal().add_(1.0)
    # Whether there is a factor is for rank 0 to say: roundoff may differ from rank to rank.
    R = ranks.from_first(lambda: ({}, {"R": _inverse_root(B, s)}))[1]["R"]
    # Q̂⁻¹ = (I - Aᵀ B⁻¹ A / σ²) / σ², between all columns of Y and H.
    RF = R @ found.F
    inner = (found.T - RF.T @ RF / s) / s
    YY, HY, HH = inner[:p, :p], inner[p:, :p], inner[p:, p:]
    trend = _least_squares(HH, HY)
    beta = trend.coefficients
    # eᵀ Q̂⁻¹ e = Yᵀ Q̂⁻¹ Y - βᵀ Hᵀ Q̂⁻¹ Y at this β.
    fit = float(YY.diagonal().sum() - (HY * beta).sum())
    value = -0.5 * (
        n * p * math.log(2 * math.pi * s)
        - p * float(2 * R.diagonal().log().sum())
        + fit
        + p * (found.trace - float(found.P.diagonal().sum())) / s
    )
    alpha = found.factor.solve_transposed(R.T @ RF) / s
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
    S = gram(at.R)  # B⁻¹
    u = S @ F / s
    N = -p / s * S
    N.diagonal().add_(p / s)
    M = p * (S + found.P / s) + u @ u.T
    M.diagonal().sub_(p)
    D = -0.5 * factor.pull(M)
    errors = TH @ coefficients
    if tiles.room.dtype == torch.float64:
        weight = _plain_weight(factor, N, errors, at.weights, s)
    else:
        weight = _whitened_weight(tiles, factor, N, errors, u, s)
    by_rows = tiles.derivative(weight) + cross.diagonal_derivative(X, -0.5 * p / s, 0.0)
    # The jitter is a share of the mean of k(z, z), and moves with it.
    jitter = factor.share * float(D.diagonal().sum()) / m
    by_square = cross.square_derivative(D) + cross.diagonal_derivative(X[:0], 0.0, jitter)
    total = by_rows.summed(ranks) + by_square
    by_name = total.hyperparameters
    squares = float((coefficients.T @ found.T @ coefficients).diagonal().sum())
    fitted, twice = float((F * u).sum()), float((u * u).sum())
    leftover = found.trace - float(found.P.diagonal().sum())
    by_name["noise_variance"] = torch.tensor(
        0.5 * p * (m - float(S.diagonal().sum()) - n) / s
        + 0.5 * squares / s**2
        - 0.5 * (fitted / s + twice) / s
        + 0.5 * p * leftover / s**2,
        dtype=torch.float64,
    )
    return by_name, total.Z


def _plain(tiles: Tiles, TH: Tensor, factor: Factor) -> tuple[Tensor, Tensor]:
    """K(Z, X) K(X, Z), of which the lower triangle is right, and K(Z, X) [Y, H]."""
    m = len(factor.L)
    Phi = torch.zeros(m, m, dtype=torch.float64)
    KT = torch.zeros(m, TH.shape[1], dtype=torch.float64)
    for rows, K in tiles.blocks():
        for j in range(0, m, STRIP):
            Phi[j:, j : j + STRIP].addmm_(K[:, j:].T, K[:, j : j + STRIP])
        KT.addmm_(K.T, TH[rows])
    return Phi, KT


def _plain_weight(factor: Factor, N: Tensor, errors: Tensor, alpha: Tensor, s: float) -> Weight:
    """K(X, Z) L⁻ᵀ N L⁻¹ + (e - K(X, Z) α) αᵀ / σ²."""
    C = factor.pull(N)

    def weight(rows: slice, K: Tensor) -> Tensor:
        left = torch.addmm(errors[rows], K, alpha, alpha=-1).div_(s)
        return torch.addmm(left @ alpha.T, K, C)

    return weight


def _whitened(tiles: Tiles, TH: Tensor, factor: Factor) -> tuple[Tensor, Tensor]:
    """A Aᵀ, of which the lower triangle is right, and A [Y, H]; sums over tiles are float64."""
    m = len(factor.L)
    P = torch.zeros(m, m, dtype=torch.float64)
    F = torch.zeros(TH.shape[1], m, dtype=torch.float64)
    W = factor.W.to(tiles.room.dtype)
    for rows, K in tiles.blocks(beside=1):
        A = triangular_product(W, K.T, upper=False, out=tiles.room.take(m, len(K)))
        P += lower_product(A, A.T)
        _add_product(F, TH[rows].T, A)
        tiles.keep(rows, A)
    return P, F.T


def _add_product(F: Tensor, T: Tensor, A: Tensor) -> None:
    """F += T Aᵀ in float64, for few rows of T, with as much of A at a time as stays in cache.

    In float32 it would be this product that changes the gradient most.
    """
    for i in range(0, len(A), THIN):
        F[:, i : i + THIN].addmm_(T, A[i : i + THIN].double().T)


def _whitened_weight(
    tiles: Tiles, factor: Factor, N: Tensor, errors: Tensor, u: Tensor, s: float
) -> Weight:
    """Aᵀ (N L⁻¹) + (e - Aᵀ u) αᵀ / σ², with A as it was kept or made again."""
    room, kind = tiles.room, tiles.room.dtype
    W, NW = factor.W.to(kind), triangular_product(factor.W.T, N, upper=True).T.to(kind)
    alpha, mean = (factor.W.T @ u / s).to(kind), u.to(kind)

    def weight(rows: slice, K: Tensor) -> Tensor:
        A = tiles.take(rows)
        if A is None:
            A = triangular_product(W, K.T, upper=False, out=room.take(len(W), len(K)))
        left = errors[rows].to(kind).addmm_(A.T, mean, alpha=-1)
        G = torch.addmm(left @ alpha.T, A.T, NW)
        room.give(A)
        return G

    return weight


def _inverse_root(B: Tensor, noise_variance: float) -> Tensor:
    """C⁻¹ for B = I + A Aᵀ / σ² = C Cᵀ."""
    found = inverse_cholesky(B.clone())
    if found is None:
        raise ValueError(
            f"jitter: expected I + A Aᵀ / noise to be positive definite, got a failed pivot with "
            f"noise variance {noise_variance:.2g}; raise jitter or noise_floor"
        )
    return found


def _least_squares(HH: Tensor, HY: Tensor) -> Trend:
    """β and its covariance from Hᵀ Q̂⁻¹ H and Hᵀ Q̂⁻¹ Y."""
    q = len(HH)
    # As if H were the identity: its products are what is known.
    eye = torch.eye(q, dtype=HH.dtype)
    return generalised_least_squares(eye, eye, HH, HY)
