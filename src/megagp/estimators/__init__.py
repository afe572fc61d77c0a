"""What users fit: regressors behind scikit-learn's contract.

base   validation, whitening, shapes, progress and files, for all of them
exact  GPRegressor: no approximation but a tolerance
"""

from megagp.estimators.base import Regressor
from megagp.estimators.exact import GPRegressor

__all__ = ["GPRegressor", "Regressor"]
