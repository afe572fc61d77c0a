"""What the errors of points that are left out say of a posterior's noise, and of its variances."""

from __future__ import annotations

import torch

from megagp.posterior.error_scale import Errors, Scale, learn_scale
from megagp.posterior.left_out import LeftOut
from megagp.posterior.posterior import Posterior

# Share of noise in the variance of a typical prediction, below which noise is not what varies.
NOISE_SHARE = 0.5
# No calibration is smaller than this.
LEAST = 1e-3


def noise_factor(
    posterior: Posterior, out: LeftOut, level: float, floor: float, seed: int
) -> Scale | None:
    """What the noise variance, which is `level`, is to be multiplied by; None for 1.

    floor: what the noise variance is at least, then. Effects of places, which no other place tells,
    count as noise.
    """
    if not float((out.alone / out.variances).median()) >= NOISE_SHARE:
        return None
    latent = (out.variances - out.alone).clamp(min=0.0)
    found = Errors(posterior.X[out.rows], out.errors, latent, out.alone)
    return learn_scale(found, floor / level, seed)


def calibration_factor(posterior: Posterior, out: LeftOut, seed: int) -> Scale | None:
    """What variances are to be multiplied by, noise included; None for 1.

    None as well where they are off by the same everywhere.
    """
    fixed = torch.zeros_like(out.variances)
    found = Errors(posterior.X[out.rows], out.errors, fixed, out.variances)
    return learn_scale(found, LEAST, seed)
