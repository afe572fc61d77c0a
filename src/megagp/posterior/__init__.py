"""Prediction from cached solves: mean, variance, covariance."""

from megagp.posterior.noise_scale import NoiseScale, learn_noise_scale
from megagp.posterior.posterior import VARIANCES, Posterior
from megagp.posterior.precompute import precompute
from megagp.posterior.state import pack, unpack

__all__ = [
    "VARIANCES",
    "NoiseScale",
    "Posterior",
    "learn_noise_scale",
    "pack",
    "precompute",
    "unpack",
]
