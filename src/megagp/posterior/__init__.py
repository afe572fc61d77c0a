"""Prediction from cached solves: mean, variance, covariance."""

from megagp.posterior.posterior import VARIANCES, Posterior
from megagp.posterior.precompute import precompute
from megagp.posterior.state import pack, unpack

__all__ = ["VARIANCES", "Posterior", "pack", "precompute", "unpack"]
