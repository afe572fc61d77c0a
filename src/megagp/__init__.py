"""Exact Gaussian-process regression for data that has outgrown Cholesky."""

from megagp import engines, kernels
from megagp.operator import KernelOperator

__all__ = ["KernelOperator", "engines", "kernels"]
