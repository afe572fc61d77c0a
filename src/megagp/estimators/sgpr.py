"""SGPRegressor: the collapsed bound of Titsias (2009)."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from megagp.approximate import CollapsedLoss, adam, lbfgs
from megagp.distributed import Ranks
from megagp.estimators.base import PAPER_START, one_of
from megagp.estimators.inducing import InducingRegressor, jitter_report, seconds_report
from megagp.kernels import Kernel, Matern32
from megagp.mean import basis
from megagp.progress import Progress

# Rows for each inducing point, from which on Adam's steps take float32.
ROWS = 4
TRAININGS = ("lbfgs", "adam", "none")


class SGPRegressor(InducingRegressor):
    """Sparse Gaussian-process regression: m inducing points, learned with the hyperparameters.

    Maximises a lower bound on the marginal likelihood (Titsias 2009), in which the distribution of
    the function at the inducing points is the best there is. Time O(n m²) a step, memory O(m² + n).

    Parameters
    ----------
    kernel, ard, mean, noise_variance, noise_floor, whiten, random_state, verbose
        As in GPRegressor.
    inducing_points : int
        m.
    inducing_start : "kmeans", "pivots" or "random"
        Where they start: centres of clusters, pivots of randomly pivoted Cholesky, or rows of X.
    learn_inducing : bool
        Move them in training.
    training : "lbfgs", "adam" or "none"
    steps : int
        Of L-BFGS at most, or of Adam.
    learning_rate : float
        For Adam.
    jitter : float
        Added to the diagonal of K(Z, Z), as a share of its mean; raised where that is too little.
    distributed : bool
        Under torchrun, or where a script has set up torch.distributed, share the rows with the
        other ranks. All must have the same data, and call fit and predict together.

    Attributes
    ----------
    kernel_, noise_variance_ : learned, on whitened data
    inducing_points_ : m x d, in the units of X
    log_marginal_likelihood_ : the lower bound on it, in the units of y
    n_iter_ : evaluations of the bound in training
    diagnostics_ : dict: per phase seconds and steps; evaluations by precision; jitter
    """

    training: str

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        ard: bool = True,
        mean: str = "constant",
        inducing_points: int = 512,
        inducing_start: str = "kmeans",
        learn_inducing: bool = True,
        training: str = "lbfgs",
        steps: int = 100,
        learning_rate: float = 0.1,
        noise_variance: float = 0.1,
        noise_floor: float = 1e-4,
        jitter: float = 1e-6,
        whiten: bool = True,
        distributed: bool = True,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.kernel = kernel
        self.ard = ard
        self.mean = mean
        self.inducing_points = inducing_points
        self.inducing_start = inducing_start
        self.learn_inducing = learn_inducing
        self.training = training
        self.steps = steps
        self.learning_rate = learning_rate
        self.noise_variance = noise_variance
        self.noise_floor = noise_floor
        self.jitter = jitter
        self.whiten = whiten
        self.distributed = distributed
        self.random_state = random_state
        self.verbose = verbose

    @classmethod
    def paper(cls, **changes: Any) -> SGPRegressor:
        """The settings of Wang et al. 2019: shared lengthscale, m = 512, 100 steps of Adam 0.1."""
        settings: dict[str, Any] = {
            "kernel": Matern32(PAPER_START, PAPER_START),
            "noise_variance": PAPER_START,
            "inducing_points": 512,
            "inducing_start": "random",
            "training": "adam",
            "steps": 100,
            "learning_rate": 0.1,
        }
        return cls(**{**settings, **changes})

    def _fit_whitened(self, X: Tensor, Y: Tensor, progress: Progress, ranks: Ranks) -> None:
        name = {"lbfgs": "train, L-BFGS", "adam": "train, Adam", "none": "evaluate"}[self.training]
        steps = 1 if self.training == "none" else self.steps
        progress.start([("inducing points", 1, 1.0), (name, steps, 1.0)])
        begin = time.perf_counter()
        progress.phase("inducing points")
        parameters = self._start(X, self._seed(ranks), ranks)
        chosen = time.perf_counter()
        progress.phase(name)
        # Adam's next steps make up for rounding; L-BFGS takes it for curvature. With few rows for a
        # point, time goes into m x m matrices, and the gradient by Z may be nothing but rounding.
        single = self.training == "adam" and len(X) >= ROWS * len(parameters.Z)
        products = torch.float32 if single else torch.float64
        H = basis(X, self.mean)
        objective = CollapsedLoss(X, Y, H, parameters, self.jitter, ranks, products)
        if self.training == "adam":
            objective.lead(lambda: adam(objective, self.steps, self.learning_rate, progress.step))
        elif self.training == "lbfgs":
            objective.lead(lambda: lbfgs(objective, self.steps, progress.step))
        at = objective.settle()
        trained = time.perf_counter()
        self._keep(at, parameters)
        self.kernel_ = parameters.kernel
        self.noise_variance_ = at.noise_variance
        self.n_samples_ = len(X)
        self.log_marginal_likelihood_ = self._in_units_of_y(at.value)
        self.n_iter_ = objective.evaluations.total()
        loss = -at.value / Y.numel()
        self.diagnostics_ = {
            "inducing_points": len(parameters.Z),
            "phases": [
                seconds_report("inducing points", len(X), 1, chosen - begin, float("nan")),
                seconds_report(name, len(X), self.n_iter_, trained - chosen, loss),
            ],
            "evaluations": {
                "float32": objective.evaluations[torch.float32],
                "float64": objective.evaluations[torch.float64],
            },
            "jitter": jitter_report(self.jitter, objective.largest_share, at.factor.jitter),
        }

    def _check_settings(self) -> None:
        self._check_shared()
        one_of("training", self.training, TRAININGS)
        self._check_whole(("steps",))
