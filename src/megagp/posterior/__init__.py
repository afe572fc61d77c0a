"""Prediction from cached solves: mean, variance, covariance."""

from megagp.posterior.calibration import calibration_factor, noise_factor
from megagp.posterior.error_scale import Scale
from megagp.posterior.exact_variance import most_rows
from megagp.posterior.left_out import LeftOut, rows_left_out
from megagp.posterior.posterior import VARIANCES, Posterior
from megagp.posterior.precompute import precompute
from megagp.posterior.state import pack, unpack

__all__ = [
    "VARIANCES",
    "LeftOut",
    "Posterior",
    "Scale",
    "calibration_factor",
    "most_rows",
    "noise_factor",
    "pack",
    "precompute",
    "rows_left_out",
    "unpack",
]
