"""Exact Gaussian-process regression for data that has outgrown Cholesky."""

import os

# torch's idle threads otherwise spin on the cores that ours need, which hurts most on a busy
# machine. It counts if torch is not loaded yet, and a value that is set stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from megagp import datasets, engines, kernels
from megagp.estimators import GPRegressor
from megagp.loading import load
from megagp.operator import KernelOperator

__all__ = ["GPRegressor", "KernelOperator", "datasets", "engines", "kernels", "load"]
