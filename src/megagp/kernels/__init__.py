"""Covariance functions: hyperparameters and a formula."""

from megagp.kernels.batch import evaluate_batch
from megagp.kernels.composite import Product, Sum
from megagp.kernels.constant import Constant
from megagp.kernels.contraction import contract
from megagp.kernels.hyperparameter import Hyperparameter, Positive
from megagp.kernels.kernel import Kernel
from megagp.kernels.linear import Linear
from megagp.kernels.matern import Matern12, Matern32, Matern52
from megagp.kernels.periodic import Periodic
from megagp.kernels.rational_quadratic import RationalQuadratic
from megagp.kernels.rbf import RBF
from megagp.kernels.stationary import Stationary

__all__ = [
    "RBF",
    "Constant",
    "Hyperparameter",
    "Kernel",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Positive",
    "Product",
    "RationalQuadratic",
    "Stationary",
    "Sum",
    "contract",
    "evaluate_batch",
]
