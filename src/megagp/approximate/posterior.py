"""Predictions from inducing points.

With a(x) = L⁻¹ k(Z, x), u ~ N(·, Rᵀ R) the whitened inducing values after the data:

mean(x) = h(x)ᵀ β + k(x, Z) α
var(x) = k(x, x) - ‖a‖² + ‖R a‖² + vᵀ cov(β) v,  v = h(x) - Gᵀ k(Z, x)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from megagp.approximate.cross import CrossCovariance
from megagp.kernels import Kernel
from megagp.likelihood import Trend
from megagp.mean import MEANS, basis
from megagp.storage import StorageError, kernel_from_json, kernel_to_json, require, require_tensor

# New points per pass.
CHUNK = 4096


@dataclass(frozen=True)
class InducingPosterior:
    """All that predictions need, on whitened data; its size does not depend on n.

    Z: m x d. weights: α, m x p. trend_weights: G, m x q. L: factor of K(Z, Z) + jitter. R: m x m.
    """

    Z: Tensor
    kernel: Kernel
    mean: str
    trend: Trend
    weights: Tensor
    trend_weights: Tensor
    L: Tensor
    R: Tensor

    def __post_init__(self) -> None:
        # Row by row in memory, as files have them: BLAS may round another layout in another way.
        for name in ("Z", "weights", "trend_weights", "L", "R"):
            object.__setattr__(self, name, getattr(self, name).contiguous())

    @property
    def d(self) -> int:
        return self.Z.shape[1]

    def predict(self, X_new: Tensor) -> Tensor:
        """The mean at new points, n' x p. Cost O(n' m d)."""
        return torch.cat([mean for mean, _, _ in self._chunks(X_new)])

    def variance(self, X_new: Tensor) -> Tensor:
        """The variance of the latent function at new points, n'. Cost O(n' m²)."""
        parts = []
        for (_, K, gap), X in zip(self._chunks(X_new), torch.split(X_new, CHUNK), strict=True):
            A = torch.linalg.solve_triangular(self.L, K.T, upper=False)
            left = self.kernel.diagonal(X).detach() - A.square().sum(0)
            by_trend = ((gap @ self.trend.covariance) * gap).sum(1)
            known = (self.R @ A).square().sum(0)
            parts.append(left.clamp(min=0.0) + known + by_trend.clamp(min=0.0))
        return torch.cat(parts)

    def covariance(self, X_new: Tensor) -> Tensor:
        """The covariance of the latent function between new points, n' x n'."""
        parts = list(self._chunks(X_new))
        K = torch.cat([K for _, K, _ in parts])
        gap = torch.cat([gap for _, _, gap in parts])
        A = torch.linalg.solve_triangular(self.L, K.T, upper=False)
        RA = self.R @ A
        prior = CrossCovariance(self.kernel, X_new).square()
        C: Tensor = prior - A.T @ A + RA.T @ RA + gap @ self.trend.covariance @ gap.T
        return 0.5 * (C + C.T)

    def _chunks(self, X_new: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For runs of new points: the mean, K(X, Z), and h(x) - Gᵀ k(Z, x)."""
        cross = CrossCovariance(self.kernel, self.Z)
        for X in torch.split(X_new, CHUNK):
            K, H = cross.block(X), basis(X, self.mean)
            yield H @ self.trend.coefficients + K @ self.weights, K, H - K @ self.trend_weights


def pack(posterior: InducingPosterior) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors from which `unpack` makes the same posterior, bit for bit."""
    header = {"kernel": kernel_to_json(posterior.kernel), "mean": posterior.mean}
    tensors = {
        "Z": posterior.Z,
        "weights": posterior.weights,
        "trend_weights": posterior.trend_weights,
        "trend_coefficients": posterior.trend.coefficients,
        "trend_covariance": posterior.trend.covariance,
        "L": posterior.L,
        "R": posterior.R,
    }
    return header, tensors


def unpack(
    header: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    kernels: Mapping[str, type[Kernel]] | None = None,
) -> InducingPosterior:
    """The posterior that `pack` took apart; StorageError for what does not fit together."""
    Z = require_tensor(tensors, "Z", None, None)
    m, d = Z.shape
    if m == 0 or d == 0:
        raise StorageError(f"Z: expected at least one row and column, got {m} x {d}")
    mean = require(header, "mean", str)
    if mean not in MEANS:
        raise StorageError(f"mean: expected one of {', '.join(MEANS)}, got {mean!r}")
    q = basis(Z[:1], mean).shape[1]
    weights = require_tensor(tensors, "weights", m, None)
    L = require_tensor(tensors, "L", m, m)
    if not bool((L.diagonal() > 0).all()):
        raise StorageError("L: expected a positive diagonal, got another")
    kernel = kernel_from_json(require(header, "kernel", dict), kernels)
    kernel.check_inputs(d)
    return InducingPosterior(
        Z=Z,
        kernel=kernel,
        mean=mean,
        trend=Trend(
            require_tensor(tensors, "trend_coefficients", q, weights.shape[1]),
            require_tensor(tensors, "trend_covariance", q, q),
        ),
        weights=weights,
        trend_weights=require_tensor(tensors, "trend_weights", m, q),
        L=L,
        R=require_tensor(tensors, "R", m, m),
    )
