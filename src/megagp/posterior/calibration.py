"""What the errors of points that are left out say of a posterior's noise, and of its variances."""

from __future__ import annotations

import torch
from torch import Tensor

from megagp.posterior.error_scale import Errors, Scale, learn_scale
from megagp.posterior.posterior import Posterior

# Training points whose errors are looked at.
POINTS = 10_000
# Share of noise in the variance of a typical prediction, below which noise is not what varies.
NOISE_SHARE = 0.5
# No calibration is smaller than this, but for a common level.
LEAST = 1e-3


def noise_factor(posterior: Posterior, Y: Tensor, floor: float, seed: int) -> Scale | None:
    """What the noise variance is to be multiplied by; None for 1.

    Y: n x p, what the posterior was made from. floor: what the noise variance is at least, then.
    """
    rows, errors, variances = posterior.leave_one_out(Y, POINTS, seed)
    noise = posterior.noise[rows]
    if float((noise / variances).median()) < NOISE_SHARE:
        return None
    latent = (variances - noise).clamp(min=0.0)
    found = Errors(posterior.X[rows], errors, latent, noise)
    return learn_scale(found, floor / float(posterior.noise.min()), seed)


def calibration_factor(posterior: Posterior, Y: Tensor, seed: int) -> Scale | None:
    """What variances are to be multiplied by, noise included; None for 1."""
    rows, errors, variances = posterior.leave_one_out(Y, POINTS, seed)
    found = Errors(posterior.X[rows], errors, torch.zeros_like(variances), variances)
    return learn_scale(found, LEAST, seed)
