"""Exact Gaussian-process regression for data that has outgrown Cholesky."""

from megagp import datasets, engines, kernels
from megagp.estimators import GPRegressor
from megagp.loading import load
from megagp.operator import KernelOperator

__all__ = ["GPRegressor", "KernelOperator", "datasets", "engines", "kernels", "load"]
