"""A posterior as plain JSON and tensors, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from megagp.kernels import Kernel
from megagp.likelihood import Trend
from megagp.mean import MEANS, basis
from megagp.posterior.error_scale import Scale
from megagp.posterior.posterior import Posterior
from megagp.storage import (
    StorageError,
    kernel_from_json,
    kernel_to_json,
    require,
    require_tensor,
)

# What the tensors of a noise that varies, and of a calibration, are called.
SCALES = ("noise", "calibration")


def pack(posterior: Posterior) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors from which `unpack` makes the same posterior, bit for bit."""
    header = {
        "kernel": kernel_to_json(posterior.kernel),
        "mean": posterior.mean,
        "rtol": posterior.rtol,
        "max_iter": posterior.max_iter,
        "neighbours": posterior.neighbours,
        "engine": posterior.engine,
    }
    tensors = {
        "X": posterior.X,
        "noise": posterior.noise,
        "weights": posterior.weights,
        "trend_weights": posterior.trend_weights,
        "trend_coefficients": posterior.trend.coefficients,
        "trend_covariance": posterior.trend.covariance,
        "pivots": posterior.pivots,
    }
    if posterior.effects is not None:
        header["place_variance"] = posterior.place_variance
        tensors["effects"] = posterior.effects
    if posterior.place_noise is not None:
        tensors["place_noise"] = posterior.place_noise
    for name, scale in zip(SCALES, (posterior.noise_scale, posterior.calibration), strict=True):
        if scale is not None:
            tensors |= scale.pack(name)
    return header, tensors


def unpack(
    header: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    kernels: Mapping[str, type[Kernel]] | None = None,
) -> Posterior:
    """The posterior that `pack` took apart; StorageError for what does not fit together."""
    X = require_tensor(tensors, "X", None, None)
    n, d = X.shape
    if n == 0 or d == 0:
        raise StorageError(f"X: expected at least one row and column, got {n} x {d}")
    mean = require(header, "mean", str)
    if mean not in MEANS:
        raise StorageError(f"mean: expected one of {', '.join(MEANS)}, got {mean!r}")
    q = basis(X[:1], mean).shape[1]
    weights = require_tensor(tensors, "weights", n, None)
    noise = require_tensor(tensors, "noise", n)
    if not bool((noise > 0).all()):
        raise StorageError("noise: expected positive variances, got others")
    pivots = require_tensor(tensors, "pivots", None, dtype=torch.int64)
    if len(pivots) and not 0 <= int(pivots.min()) <= int(pivots.max()) < n:
        raise StorageError(f"pivots: expected indices below {n}, got others")
    rtol = float(require(header, "rtol", float))
    if not 0 < rtol < math.inf:
        raise StorageError(f"rtol: expected a positive number, got {rtol}")
    neighbours = require(header, "neighbours", int, type(None))
    kernel = kernel_from_json(require(header, "kernel", dict), kernels)
    kernel.check_inputs(d)
    effects, place_variance = None, 0.0
    if "effects" in tensors:
        effects = require_tensor(tensors, "effects", n)
        if not bool(((effects > 0) & (effects <= noise)).all()):
            raise StorageError("effects: expected positive variances, at most `noise`, got others")
        place_variance = float(require(header, "place_variance", float))
        if not 0 < place_variance < math.inf:
            raise StorageError(f"place_variance: expected a positive number, got {place_variance}")
    place_noise = None
    if "place_noise" in tensors:
        place_noise = require_tensor(tensors, "place_noise", n)
        if not bool(((place_noise > 0) & place_noise.isfinite()).all()):
            raise StorageError("place_noise: expected positive factors, got others")
    noise_scale, calibration = (
        Scale.unpack(tensors, name, d)
        if any(key.startswith(f"{name}_") for key in tensors)
        else None
        for name in SCALES
    )
    return Posterior(
        X=X,
        kernel=kernel,
        noise=noise,
        mean=mean,
        trend=Trend(
            require_tensor(tensors, "trend_coefficients", q, weights.shape[1]),
            require_tensor(tensors, "trend_covariance", q, q),
        ),
        weights=weights,
        trend_weights=require_tensor(tensors, "trend_weights", n, q),
        pivots=pivots,
        rtol=rtol,
        max_iter=_at_least(1, "max_iter", require(header, "max_iter", int)),
        neighbours=None if neighbours is None else _at_least(0, "neighbours", neighbours),
        engine=require(header, "engine", str),
        noise_scale=noise_scale,
        calibration=calibration,
        effects=effects,
        place_variance=place_variance,
        place_noise=place_noise,
    )


def _at_least(least: int, name: str, value: int) -> int:
    if value < least:
        raise StorageError(f"{name}: expected at least {least}, got {value}")
    return value
