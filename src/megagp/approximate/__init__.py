"""Gaussian processes that know the data through m inducing points.

inducing    where the points start
cross       K(X, Z) in tiles, and derivatives of what depends on it
factor      Cholesky factors of K(Z, Z), with jitter
triangular  products with triangular matrices
parameters  hyperparameters and Z as one vector
sgpr        the collapsed bound of Titsias (2009) and its gradient
search      Adam and L-BFGS on it
svgp        the stochastic bound of Hensman et al. (2013) and its gradient
stochastic  training on minibatches
posterior   predictions
"""

from megagp.approximate.inducing import INDUCING, choose_inducing
from megagp.approximate.parameters import POSITIVE, InducingParameters, SoftplusParameters
from megagp.approximate.posterior import InducingPosterior, pack, unpack
from megagp.approximate.search import CollapsedLoss, adam, lbfgs
from megagp.approximate.sgpr import Collapsed
from megagp.approximate.stochastic import VARIATIONAL, Fitted, Schedule, train_stochastic

__all__ = [
    "INDUCING",
    "POSITIVE",
    "VARIATIONAL",
    "Collapsed",
    "CollapsedLoss",
    "Fitted",
    "InducingParameters",
    "InducingPosterior",
    "Schedule",
    "SoftplusParameters",
    "adam",
    "choose_inducing",
    "lbfgs",
    "pack",
    "train_stochastic",
    "unpack",
]
