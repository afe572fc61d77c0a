"""What users fit: regressors behind scikit-learn's contract.

base      validation, whitening, shapes, progress and files, for all of them
exact     GPRegressor: no approximation but a tolerance
learning  what a fit of it does, in order: learn, vary the noise, calibrate
rows      training rows, the places that they share, and the noise of those
inducing  predictions and files of the two below
sgpr      SGPRegressor: inducing points, all data at each step
svgp      SVGPRegressor: inducing points, a minibatch at each step
"""

from megagp.estimators.base import Regressor
from megagp.estimators.exact import GPRegressor
from megagp.estimators.sgpr import SGPRegressor
from megagp.estimators.svgp import SVGPRegressor

__all__ = ["GPRegressor", "Regressor", "SGPRegressor", "SVGPRegressor"]
