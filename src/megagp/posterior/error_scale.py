"""Errors that differ from place to place: a smooth factor on their variance, learned from them.

Of training points, each predicted from all others, the errors e are known. With a factor s(x)
on a part b of their variance, a the rest,

e ~ N(0, a + b s(x)),  log s(x) = c + α k(x, Z) L⁻ᵀ u,  K(Z, Z) = L Lᵀ,  u ~ N(0, I),

log s a Gaussian process with inducing points Z. c and u are where their density given the errors
is highest. Of several lengthscales and amplitudes α, those are taken with which the errors of one
half of the points are best foretold from the other half.

b is the noise variance where noise is what varies, and the whole variance where the function
itself is rougher in one place than in another, or the model is wrong in some.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from megagp.kernels import Matern32
from megagp.neighbours import chunks
from megagp.storage import DAMAGED, StorageError, require_tensor

INDUCING = 400
# Shares of K(Z, Z)'s diagonal that are added to it.
JITTER = 1e-6
# Lengthscales, as multiples of √d on whitened inputs, and amplitudes that are tried.
LENGTHSCALES, AMPLITUDES = (0.5, 1.5), (1.0, 2.0)
# Fewer points say nothing about how errors vary.
FEWEST = 200
# Nats per error that a factor must gain on points that it has not seen.
GAIN = 0.01
# Steps of L-BFGS: to choose, and to fit what was chosen.
CHOOSING_STEPS, STEPS = 40, 100
# Logarithms of levels that are looked at.
LEVELS = (0.0, 3.0)
# No line search needs to look at factors beyond exp of this.
FARTHEST = 30.0
# Constants that a file may have: beyond this a factor is no number.
MOST_CONSTANT = 500.0
# New points per pass.
CHUNK = 4096


class Errors(NamedTuple):
    """Of training points, each predicted from the others: X n x d, errors n x p.

    Their variance, n each: what no factor touches, and what one multiplies.
    """

    X: Tensor
    errors: Tensor
    fixed: Tensor
    scaled: Tensor

    def at(self, rows: Tensor) -> Errors:
        return Errors(*(part[rows] for part in self))


@dataclass(frozen=True)
class Scale:
    """x -> s(x), what a variance is multiplied by at x.

    Z: m x d; weights: α L⁻ᵀ u, m; constant: c; least: a lower bound on s.
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

    def times(self, level: float) -> Scale:
        """level s."""
        constant = self.constant + math.log(level)
        return replace(self, constant=constant, least=self.least * level)

    def pack(self, name: str) -> dict[str, Tensor]:
        """Tensors from which `unpack` makes the same."""
        numbers = torch.tensor([self.lengthscale, self.constant, self.least], dtype=torch.float64)
        return {f"{name}_Z": self.Z, f"{name}_weights": self.weights, f"{name}_numbers": numbers}

    @classmethod
    def unpack(cls, tensors: Mapping[str, Tensor], name: str, d: int) -> Scale:
        """StorageError for what does not fit together, or not points of d columns."""
        Z = require_tensor(tensors, f"{name}_Z", None, d)
        weights = require_tensor(tensors, f"{name}_weights", len(Z))
        lengthscale, constant, least = require_tensor(tensors, f"{name}_numbers", 3).tolist()
        if not (lengthscale > 0 and least >= 0 and abs(constant) < MOST_CONSTANT):
            raise StorageError(
                f"{name}_numbers: expected a positive lengthscale, a constant below "
                f"{MOST_CONSTANT:g} and a bound >= 0, got {lengthscale}, {constant}, {least}; "
                f"{DAMAGED}"
            )
        return cls(Z, weights, lengthscale, constant, least)


def learn_scale(found: Errors, least: float, seed: int) -> Scale | None:
    """The factor that explains the errors; None if a constant explains them as well.

    least: what the factor is at least. Errors that it has not seen are larger than those that it
    has, and it is raised by as much.
    """
    if len(found.X) < FEWEST:
        return None
    rng = np.random.default_rng(seed)
    distinct = np.unique(found.X.numpy(), axis=0)
    Z = torch.from_numpy(distinct[rng.permutation(len(distinct))[:INDUCING]])
    order = torch.from_numpy(rng.permutation(len(found.X)))
    halves = found.at(order[::2]), found.at(order[1::2])
    plain, _ = _Fit(Z[:0], 1.0, 1.0, least).foretold(halves)
    root = math.sqrt(found.X.shape[1])
    tried = [_Fit(Z, r * root, a, least) for r in LENGTHSCALES for a in AMPLITUDES]
    (score, level), fit = min(((f.foretold(halves), f) for f in tried), key=lambda pair: pair[0])
    return fit.on(found, STEPS).times(level) if score < plain - GAIN else None


class _Fit:
    """The factor for one lengthscale and amplitude; without Z, a constant."""

    def __init__(self, Z: Tensor, lengthscale: float, amplitude: float, least: float) -> None:
        self.Z, self.lengthscale, self.amplitude, self.least = Z, lengthscale, amplitude, least
        K = Matern32(lengthscale).evaluate(Z, Z).detach()
        K.diagonal().add_(JITTER)
        self.L = torch.linalg.cholesky(K)

    def foretold(self, halves: tuple[Errors, Errors]) -> tuple[float, float]:
        """How well either half's errors are foretold by the other, with the best common level.

        Minus the log density of an error, up to a constant; and that level.
        """
        parts = []
        for known, unknown in (halves, halves[::-1]):
            scale = self.on(known, CHOOSING_STEPS).at(unknown.X)
            parts.append(unknown._replace(scaled=unknown.scaled * scale))
        _, errors, fixed, scaled = (torch.cat(part) for part in zip(*parts, strict=True))

        def loss(log_level: float) -> float:
            return float(_loss(errors, fixed + math.exp(log_level) * scaled)) / errors.numel()

        best = minimize_scalar(loss, bounds=LEVELS, method="bounded")
        return float(best.fun), math.exp(float(best.x))

    def on(self, found: Errors, steps: int) -> Scale:
        """c and u of highest density given these errors."""
        B = self.amplitude * torch.linalg.solve_triangular(
            self.L, Matern32(self.lengthscale).evaluate(found.X, self.Z).detach().T, upper=False
        )
        p = found.errors.shape[1]
        squares = found.errors.square().sum(1)

        def loss(theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            u = torch.from_numpy(theta[1:])
            part = found.scaled * (theta[0] + u @ B).clamp(-FARTHEST, FARTHEST).exp()
            v = found.fixed + part
            value = _loss(found.errors, v) + 0.5 * float(u @ u)
            slope = 0.5 * part / v * (p - squares / v)
            return float(value), np.append(float(slope.sum()), (B @ slope + u).numpy())

        start = np.zeros(1 + len(self.Z))
        theta = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": steps}).x
        u = self.amplitude * torch.from_numpy(theta[1:, None])
        weights = torch.linalg.solve_triangular(self.L.T, u, upper=True)[:, 0]
        return Scale(self.Z, weights, self.lengthscale, float(theta[0]), self.least)


def _loss(errors: Tensor, variance: Tensor) -> Tensor:
    """-Σ log N(e | 0, v), up to a constant; v is that of a row."""
    return 0.5 * (
        errors.shape[1] * variance.log().sum() + (errors.square().sum(1) / variance).sum()
    )
