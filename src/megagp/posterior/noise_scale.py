"""Noise that differs from place to place: a smooth factor on its variance, learned from errors.

A posterior with one noise variance σ² has, for a training point and its prediction from all
others, the error e and the latent variance l. With a factor s(x) on the noise

e ~ N(0, l + σ² s(x)),  log s(x) = c + a k(x, Z) L⁻ᵀ u,  K(Z, Z) = L Lᵀ,  u ~ N(0, I),

log s a Gaussian process with inducing points Z. c and u are where their density given the errors
is highest. Of several lengthscales and amplitudes a, those are taken with which the errors of one
half of the points are best foretold from the other half.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from megagp.kernels import Matern32
from megagp.neighbours import chunks
from megagp.storage import StorageError, require_tensor

INDUCING = 400
# Shares of K(Z, Z)'s diagonal that are added to it.
JITTER = 1e-6
# Lengthscales, as multiples of √d on whitened inputs, and amplitudes that are tried.
LENGTHSCALES, AMPLITUDES = (0.5, 1.5), (1.0, 2.0)
# Fewer points say nothing about how noise varies.
FEWEST = 200
# Nats per error that a varying noise must gain on points that it has not seen.
GAIN = 0.01
# Steps of L-BFGS: to choose, and to fit what was chosen.
CHOOSING_STEPS, STEPS = 40, 100
# No line search needs to look at factors beyond exp of this.
FARTHEST = 30.0
# New points per pass.
CHUNK = 4096


class Errors(NamedTuple):
    """Of training points, each predicted from the others: X n x d, errors n x p, latent n."""

    X: Tensor
    errors: Tensor
    latent: Tensor

    def at(self, rows: Tensor) -> Errors:
        return Errors(self.X[rows], self.errors[rows], self.latent[rows])


@dataclass(frozen=True)
class NoiseScale:
    """x -> s(x), what the noise variance is multiplied by at x.

    Z: m x d; weights: a L⁻ᵀ u, m; constant: c; least: a lower bound on s.
    """

    Z: Tensor
    weights: Tensor
    lengthscale: float
    constant: float
    least: float = 0.0

    def at(self, X: Tensor) -> Tensor:
        """s at points, n x d to n. Cost O(n m d)."""
        kernel = Matern32(self.lengthscale)
        parts = [
            kernel.evaluate(X[rows], self.Z).detach() @ self.weights
            for rows in chunks(len(X), CHUNK)
        ]
        return (self.constant + torch.cat(parts)).exp().clamp(min=self.least)

    def divided(self, level: float) -> NoiseScale:
        """s / level."""
        constant = self.constant - math.log(level)
        return replace(self, constant=constant, least=self.least / level)

    def pack(self) -> dict[str, Tensor]:
        """Tensors from which `unpack` makes the same."""
        numbers = torch.tensor([self.lengthscale, self.constant, self.least], dtype=torch.float64)
        return {"noise_Z": self.Z, "noise_weights": self.weights, "noise_numbers": numbers}

    @classmethod
    def unpack(cls, tensors: Mapping[str, Tensor]) -> NoiseScale:
        """StorageError for what does not fit together."""
        Z = require_tensor(tensors, "noise_Z", None, None)
        weights = require_tensor(tensors, "noise_weights", len(Z))
        lengthscale, constant, least = require_tensor(tensors, "noise_numbers", 3).tolist()
        if not (lengthscale > 0 and least >= 0):
            raise StorageError(
                "noise_numbers: expected a positive lengthscale and bound, got "
                f"{lengthscale}, {least}"
            )
        return cls(Z, weights, lengthscale, constant, least)


def learn_noise_scale(
    found: Errors, noise_variance: float, least: float, seed: int
) -> NoiseScale | None:
    """The factor that explains the errors; None if one noise variance explains them as well.

    least: what the factor is at least.
    """
    if len(found.X) < FEWEST:
        return None
    rng = np.random.default_rng(seed)
    distinct = np.unique(found.X.numpy(), axis=0)
    Z = torch.from_numpy(distinct[rng.permutation(len(distinct))[:INDUCING]])
    order = torch.from_numpy(rng.permutation(len(found.X)))
    halves = found.at(order[::2]), found.at(order[1::2])
    plain = _Fit(Z[:0], 1.0, 1.0, least)
    limit = plain.foretold(halves, noise_variance) - GAIN
    root = math.sqrt(found.X.shape[1])
    tried = [_Fit(Z, r * root, a, least) for r in LENGTHSCALES for a in AMPLITUDES]
    scores = [fit.foretold(halves, noise_variance) for fit in tried]
    best = int(np.argmin(scores))
    return tried[best].on(found, noise_variance, STEPS) if scores[best] < limit else None


class _Fit:
    """The factor for one lengthscale and amplitude; without Z, a constant."""

    def __init__(self, Z: Tensor, lengthscale: float, amplitude: float, least: float) -> None:
        self.Z, self.lengthscale, self.amplitude, self.least = Z, lengthscale, amplitude, least
        K = Matern32(lengthscale).evaluate(Z, Z).detach()
        K.diagonal().add_(JITTER)
        self.L = torch.linalg.cholesky(K)

    def foretold(self, halves: tuple[Errors, Errors], noise_variance: float) -> float:
        """Minus the log density of an error of either half given the other, up to a constant."""
        total, count = 0.0, 0
        for known, unknown in (halves, halves[::-1]):
            scale = self.on(known, noise_variance, CHOOSING_STEPS).at(unknown.X)
            variance = unknown.latent + noise_variance * scale
            total += float(_loss(unknown.errors, variance))
            count += unknown.errors.numel()
        return total / count

    def on(self, found: Errors, noise_variance: float, steps: int) -> NoiseScale:
        """c and u of highest density given these errors."""
        B = self.amplitude * torch.linalg.solve_triangular(
            self.L, Matern32(self.lengthscale).evaluate(found.X, self.Z).detach().T, upper=False
        )
        p = found.errors.shape[1]
        squares = found.errors.square().sum(1)

        def loss(theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            u = torch.from_numpy(theta[1:])
            noise = noise_variance * (theta[0] + u @ B).clamp(-FARTHEST, FARTHEST).exp()
            v = found.latent + noise
            value = _loss(found.errors, v) + 0.5 * float(u @ u)
            slope = 0.5 * noise / v * (p - squares / v)
            return float(value), np.append(float(slope.sum()), (B @ slope + u).numpy())

        start = np.zeros(1 + len(self.Z))
        theta = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": steps}).x
        u = self.amplitude * torch.from_numpy(theta[1:, None])
        weights = torch.linalg.solve_triangular(self.L.T, u, upper=True)[:, 0]
        return NoiseScale(self.Z, weights, self.lengthscale, float(theta[0]), self.least)


def _loss(errors: Tensor, variance: Tensor) -> Tensor:
    """-Σ log N(e | 0, v), up to a constant; v is that of a row."""
    return 0.5 * (
        errors.shape[1] * variance.log().sum() + (errors.square().sum(1) / variance).sum()
    )
