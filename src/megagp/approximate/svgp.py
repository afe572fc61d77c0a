"""Hensman's stochastic bound on minibatches, whitened: u = L v, v ~ N(μ, S) after the data.

With A = L⁻¹ K(Z, X_b) for b of n rows, e = Y_b - H_b β, r = e - Aᵀ μ:

bound = n/b Σ_i (-p/2 log 2πσ² - (‖r_i‖² + p (k_ii - ‖a_i‖² + a_iᵀ S a_i)) / 2σ²) - KL
KL = ½ (p tr S + ‖μ‖² - p m - p log|S|)

(Hensman et al. 2013, eq. 4, for u whitened). S is the same for all p outputs, as it is at the
optimum. By A the derivative is Ā = n/bσ² (p (I - S) A + μ rᵀ); by K(Z, Z) it is
-½ L⁻ᵀ sym(Ā Aᵀ) L⁻¹, where sym mirrors the lower triangle.
L⁻¹ is formed: products with it are faster than solves with L, and with jitter of 1e-6 better than
float32.
A and L are float64. What follows from A, gradients most of all, is in the type
of R: what float32 takes from them is nothing beside what another minibatch would change.
Time O(b m² + m³) for a step, memory O(m² + b m).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from megagp.approximate.cross import Tiles
from megagp.approximate.factor import inverse_factor
from megagp.approximate.triangular import (
    congruent,
    inverse_cholesky,
    lower_product,
    mirrored,
    triangular_product,
)


@dataclass(frozen=True)
class Batch:
    """Rows of the data, and how many they stand for: X b x d, errors b x p, of n."""

    X: Tensor
    errors: Tensor
    n: int

    @property
    def share(self) -> float:
        return self.n / len(self.X)


@dataclass(frozen=True)
class Variational:
    """q(v) = N(μ, S), S = Rᵀ R. mu: m x p; R: m x m, upper triangular; precision: S⁻¹, if kept."""

    mu: Tensor
    R: Tensor
    precision: Tensor | None = None

    @classmethod
    def prior(cls, m: int, p: int) -> Variational:
        eye = torch.eye(m, dtype=torch.float64)
        return cls(torch.zeros(m, p, dtype=torch.float64), eye, eye.clone())

    def divergence(self) -> float:
        """KL(q ‖ prior), summed over outputs."""
        m, p = self.mu.shape
        logdet = 2 * float(self.R.diagonal().abs().double().log().sum())
        trace = float(self.R.square().sum(dtype=torch.float64))
        return 0.5 * (p * (trace - m - logdet) + float(self.mu.square().sum()))


@dataclass(frozen=True)
class Gradient:
    """Of the bound: by value of hyperparameters, by Z, errors (b x p) and μ.

    RA: R A, m x b, from which the derivative by R follows.
    """

    value: float
    hyperparameters: dict[str, Tensor]
    Z: Tensor
    errors: Tensor
    mu: Tensor
    RA: Tensor


@dataclass(frozen=True)
class Whitened:
    """K(X, Z) in tiles, W = L⁻¹ (m x m) and A = W K(Z, X) (m x b); share: of jitter in K(Z, Z)."""

    tiles: Tiles
    W: Tensor
    A: Tensor
    share: float


def whitened(tiles: Tiles, share: float) -> Whitened:
    """With jitter of at least that share of the diagonal."""
    W, share = inverse_factor(tiles.cross.square(), share)
    A = triangular_product(W, tiles.whole().T, upper=False)
    return Whitened(tiles, W, A, share)


def natural_step(
    q: Variational, A: Tensor, batch: Batch, noise_variance: float, rate: float
) -> Variational:
    """A step of length `rate` along the natural gradient (Salimbeni et al. 2018).

    It is a weighted mean of natural parameters: S⁻¹ and S⁻¹ μ go to I + n/bσ² A Aᵀ and n/bσ² A e,
    which at rate 1 and with all rows is the optimum.
    """
    assert q.precision is not None
    factor = rate * batch.share / noise_variance
    precision = (1 - rate) * q.precision
    precision.add_(mirrored(lower_product(A, A.T)), alpha=factor).diagonal().add_(rate)
    natural = (1 - rate) * (q.precision @ q.mu) + factor * (A @ batch.errors)
    # Of the matrix upside down, so that the inverse of its factor is upper triangular.
    W = inverse_cholesky(precision.flip(0, 1))
    if W is None:
        raise ValueError(
            f"natural_rate: expected steps that leave q a variance, got none at {rate:.2g}; "
            "lower it"
        )
    R = W.flip(0, 1)
    return Variational(R.T @ (R @ natural), R, precision)


def stochastic_bound(at: Whitened, batch: Batch, noise_variance: float, q: Variational) -> Gradient:
    """The bound on a batch and its gradient."""
    s, p, weight = noise_variance, batch.errors.shape[1], batch.share / noise_variance
    m, b = at.A.shape
    left = batch.errors - at.A.T @ q.mu
    kind = q.R.dtype
    A, W = at.A.to(kind), at.W.to(kind)
    RA = triangular_product(q.R, A, upper=True)
    # Ā, but for the factor n/bσ²
    A_bar = triangular_product(q.R.T, RA, upper=False).neg_().add_(A).mul_(p)
    A_bar.addmm_(q.mu.to(kind), left.T.to(kind))
    cross = at.tiles.cross
    diagonal = cross.kernel.diagonal(batch.X).detach()
    spread = diagonal - at.A.square().sum(0) + RA.square().sum(0, dtype=torch.float64)
    misfit = float(left.square().sum()) + p * float(spread.sum())
    value = -0.5 * batch.share * (b * p * math.log(2 * math.pi * s) + misfit / s) - q.divergence()
    G = torch.empty(b, m, dtype=kind)
    triangular_product(W.T, A_bar.mul_(weight), upper=True, out=G.T)
    D = congruent(W, lower_product(A_bar, A.T)).mul_(-0.5)
    total = at.tiles.derivative(lambda rows, K: G[rows]) + cross.square_derivative(D)
    jitter = at.share * float(D.diagonal().sum(dtype=torch.float64)) / m
    own = cross.diagonal_derivative(batch.X, -0.5 * p * weight, jitter)
    by_name = (total + own).hyperparameters
    by_name["noise_variance"] = torch.tensor(
        0.5 * weight * (misfit / s - b * p), dtype=torch.float64
    )
    return Gradient(
        value=value,
        hyperparameters=by_name,
        Z=total.Z + own.Z,
        errors=-weight * left,
        mu=weight * (at.A @ left) - q.mu,
        RA=RA,
    )


def root_gradient(A: Tensor, RA: Tensor, R: Tensor, p: int, weight: float) -> Tensor:
    """Of the bound by Rᵀ, lower triangular: from the data (weight = n/bσ²), and from KL."""
    root = R.T
    found = lower_product(A.to(RA.dtype), RA.T).mul_(-weight * p).sub_(root, alpha=p)
    found.diagonal().add_(p / root.diagonal())
    return found
