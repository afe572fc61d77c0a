"""Exact Gaussian-process regression for data that has outgrown Cholesky."""

import os

# torch's idle threads otherwise spin on the cores that ours need, which hurts most on a busy
# machine. It counts if torch is not loaded yet, and a value that is set stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from megagp import datasets, engines, kernels
from megagp.compare import Comparison, compare
from megagp.estimators import GPRegressor, SGPRegressor, SVGPRegressor
from megagp.loading import load
from megagp.operator import KernelOperator

__all__ = [
    "Comparison",
    "GPRegressor",
    "KernelOperator",
    "SGPRegressor",
    "SVGPRegressor",
    "compare",
    "datasets",
    "engines",
    "kernels",
    "load",
]
