"""SVGPRegressor: the stochastic bound of Hensman et al. (2013)."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from megagp.approximate import (
    POSITIVE,
    VARIATIONAL,
    CollapsedLoss,
    Fitted,
    InducingParameters,
    InducingPosterior,
    Schedule,
    train_stochastic,
)
from megagp.approximate.cross import CrossCovariance
from megagp.approximate.factor import factorise
from megagp.distributed import Ranks
from megagp.estimators.base import PAPER_START, one_of
from megagp.estimators.inducing import InducingRegressor, jitter_report, seconds_report
from megagp.kernels import Kernel, Matern32
from megagp.likelihood import Trend
from megagp.mean import basis
from megagp.progress import Progress


class SVGPRegressor(InducingRegressor):
    """Variational Gaussian-process regression on minibatches, with m inducing points.

    Maximises a lower bound on the marginal likelihood (Hensman et al. 2013) by steps that see
    `batch_size` rows each. Time O(b m² + m³) a step, memory O(m² + b m) and the data.

    Parameters
    ----------
    kernel, ard, mean, noise_variance, noise_floor, whiten, random_state, verbose
        As in GPRegressor.
    inducing_points, inducing_start, learn_inducing, jitter
        As in SGPRegressor.
    epochs : int
        Times that training goes through the data.
    batch_size : int
        b.
    learning_rate : float
        Of Adam, for hyperparameters, inducing points and the mean's coefficients.
    variational : "natural" or "adam"
        How the distribution of the inducing values is learned: by natural gradients, or by Adam.
    natural_rate : float
        Length of a natural gradient step, up to 1.
    positive : "log" or "softplus"
        What Adam moves of a hyperparameter v: log v, or u with v = log(1 + exp u), as in GPyTorch
        (whose noise has its floor added): a large v then changes by differences, not factors.
    polish : bool
        At the end, take the best distribution for the hyperparameters found, by one pass over the
        data: O(n m²).

    Attributes
    ----------
    kernel_, noise_variance_ : learned, on whitened data
    inducing_points_ : m x d, in the units of X
    log_marginal_likelihood_ : the lower bound on it, in the units of y; without `polish`, a mean
        over the minibatches of the last epoch
    n_iter_ : steps
    diagnostics_ : dict: per phase seconds and steps; jitter
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        ard: bool = True,
        mean: str = "constant",
        inducing_points: int = 1024,
        inducing_start: str = "kmeans",
        learn_inducing: bool = True,
        epochs: int = 30,
        batch_size: int = 1024,
        learning_rate: float = 0.03,
        variational: str = "natural",
        natural_rate: float = 0.3,
        positive: str = "log",
        polish: bool = True,
        noise_variance: float = 0.1,
        noise_floor: float = 1e-4,
        jitter: float = 1e-6,
        whiten: bool = True,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.kernel = kernel
        self.ard = ard
        self.mean = mean
        self.inducing_points = inducing_points
        self.inducing_start = inducing_start
        self.learn_inducing = learn_inducing
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.variational = variational
        self.natural_rate = natural_rate
        self.positive = positive
        self.polish = polish
        self.noise_variance = noise_variance
        self.noise_floor = noise_floor
        self.jitter = jitter
        self.whiten = whiten
        self.random_state = random_state
        self.verbose = verbose

    @classmethod
    def paper(cls, **changes: Any) -> SVGPRegressor:
        """The settings of Wang et al. 2019: shared lengthscale, m = 1,024, 100 epochs of Adam.

        Training is theirs; what it leaves of q is then made the best there is (`polish`), which
        costs one pass and is better by one to five percent. `polish=False` leaves it out.
        """
        settings: dict[str, Any] = {
            "kernel": Matern32(PAPER_START, PAPER_START),
            "noise_variance": PAPER_START,
            "inducing_points": 1024,
            "inducing_start": "random",
            "epochs": 100,
            "batch_size": 1024,
            "learning_rate": 0.01,
            "variational": "adam",
            "positive": "softplus",
        }
        return cls(**{**settings, **changes})

    def _fit_whitened(self, X: Tensor, Y: Tensor, progress: Progress, ranks: Ranks) -> None:
        schedule = self._schedule()
        epoch = float(schedule.steps(len(X)))
        rest = [("polish", 1, epoch)] if self.polish else []
        progress.start([("inducing points", 1, 1.0), ("train", self.epochs, epoch), *rest])
        begin = time.perf_counter()
        progress.phase("inducing points")
        seed = self._seed()
        parameters = self._start(X, seed, ranks, self.positive)
        chosen = time.perf_counter()
        progress.phase("train")
        H = basis(X, self.mean)
        fitted = train_stochastic(X, Y, H, parameters, schedule, seed, progress.step)
        trained = time.perf_counter()
        phases = [
            seconds_report("inducing points", len(X), 1, chosen - begin, float("nan")),
            seconds_report(
                "train", len(X), fitted.steps, trained - chosen, -fitted.bound / Y.numel()
            ),
        ]
        if self.polish:
            progress.phase("polish")
            at = CollapsedLoss(X, Y, H, parameters, self.jitter).evaluate()[0]
            self._keep(at, parameters)
            bound, jitter = at.value, at.factor.jitter
            seconds, loss = time.perf_counter() - trained, -bound / Y.numel()
            progress.step(1, loss)
            phases.append(seconds_report("polish", len(X), 1, seconds, loss))
        else:
            bound, jitter = fitted.bound, self._keep_variational(fitted, parameters)
        self.kernel_ = parameters.kernel
        self.noise_variance_ = float(parameters.noise.value)
        self.n_samples_ = len(X)
        self.log_marginal_likelihood_ = self._in_units_of_y(bound)
        self.n_iter_ = fitted.steps
        self.diagnostics_ = {
            "inducing_points": len(parameters.Z),
            "phases": phases,
            "jitter": jitter_report(self.jitter, fitted.largest_share, jitter),
        }

    def _keep_variational(self, fitted: Fitted, parameters: InducingParameters) -> float:
        """The posterior of q as training left it; the jitter of its factor."""
        cross = CrossCovariance(parameters.kernel, parameters.Z)
        factor = factorise(cross.square(), self.jitter)
        q, terms = fitted.variational, len(fitted.coefficients)
        # β is a number here, without uncertainty.
        certain = torch.zeros(terms, terms, dtype=torch.float64)
        self.posterior_ = InducingPosterior(
            Z=parameters.Z,
            kernel=parameters.kernel,
            mean=self.mean,
            trend=Trend(fitted.coefficients, certain),
            weights=factor.solve_transposed(q.mu),
            trend_weights=torch.zeros(len(parameters.Z), terms, dtype=torch.float64),
            L=factor.L,
            R=q.R.double(),
        )
        return factor.jitter

    def _schedule(self) -> Schedule:
        return Schedule(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            variational=self.variational,
            natural_rate=self.natural_rate,
            jitter=self.jitter,
        )

    def _check_settings(self) -> None:
        self._check_shared()
        one_of("variational", self.variational, VARIATIONAL)
        one_of("positive", self.positive, POSITIVE)
        self._check_whole(("epochs", "batch_size"))
        self._check_positive(("natural_rate",))
        if self.natural_rate > 1:
            raise ValueError(f"natural_rate: expected a number up to 1, got {self.natural_rate!r}")
