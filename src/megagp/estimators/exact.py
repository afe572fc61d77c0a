"""GPRegressor: training, solves and the exact posterior behind the contract."""

from __future__ import annotations

import numbers
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from megagp.checkpoint import Checkpoint, digest
from megagp.distributed import ALONE, Ranks, check_same, spread
from megagp.engines import keeping_budget
from megagp.estimators.base import PAPER_START, Array, Regressor, one_of
from megagp.estimators.diagnostics import diagnostics
from megagp.estimators.learning import (
    CALIBRATION_PHASE,
    LEFT_OUT,
    NOISE_PHASE,
    Learned,
    Learner,
)
from megagp.estimators.rows import Noisy, Rows
from megagp.kernels import Kernel, Matern12, Matern32, Matern52
from megagp.mean import MEANS, basis
from megagp.normal_scores import NormalScores
from megagp.planning import calibrate, forecast, workload
from megagp.posterior import VARIANCES, Posterior, most_rows, pack, unpack
from megagp.progress import Progress
from megagp.solvers import ConvergenceWarning
from megagp.storage import PathLike, kernel_to_json
from megagp.training import (
    DENSE_BELOW,
    METHODS,
    Listener,
    Recipe,
    Solving,
    Started,
    choose_representation,
    places,
)

# Probes may be solved this much less precisely than y.
PROBE_SLACK, LARGEST_PROBE_RTOL = 10.0, 0.1
# A solve in training that takes more than this is not worth waiting for; it is counted.
TRAINING_ITERATIONS = 200
# From this many points on, verbose fits say beforehand what they will take.
FORECAST_FROM = 50_000
# Lengthscales of the smooth part of the kernel over those of the rough one, at the start.
ROUGH_TO_SMOOTH = 3.0
INPUTS = ("auto", "standard", "ranks")
QUALITIES = ("usual", "best")
NOISE_MODELS = ("auto", "constant", "varying")
CALIBRATIONS = ("auto", "none", "local")


class GPRegressor(Regressor):
    """Exact Gaussian-process regression by kernel products alone.

    Memory is linear in n; with 64 features or more, training may take up to a quarter of the
    machine's for entries of K that it keeps.

    Parameters
    ----------
    kernel : Kernel or None
        Starting point for training, on whitened inputs; None for Matérn-3/2. Frozen
        hyperparameters stay as they are.
    ard : bool
        With kernel=None: one lengthscale for each input instead of one for all.
    mean : "constant", "linear" or "zero"
        The mean function; its coefficients follow by generalised least squares, and their
        uncertainty is part of the predicted variance.
    noise_model : "auto", "constant" or "varying"
        One noise variance for all points, or ones that differ. Where rows share their inputs, each
        such place has noise of its own, if that foretells the rows better; what is then left
        between neighbours is a part of the function that belongs to single places. "varying" looks
        for noise that varies with x as well, learned from the errors of training points that are
        predicted from all others, and takes it if it foretells those better and noise is most of
        them. "auto" does so with quality="best".
    calibration : "auto", "none" or "local"
        "local" multiplies all predicted variances by a smooth function of x, learned from the
        same errors, if it foretells them better than a constant: for functions that are rougher
        in one place than in another. Means and the likelihood stay as they are. "auto" is
        "local" with quality="best" and "none" otherwise.
    training : "pretrain", "paper", "adam", "lbfgs" or "none"
        L-BFGS on subsets and then a few steps on everything; the paper's recipe, which does the
        same with Adam as well; `steps` steps on everything; or the kernel as given.
    steps : int
        For "adam" and "lbfgs".
    subset : int
        Points for pretraining, with "pretrain" those of its second leg at most.
    noise_variance, noise_floor : float
        Start and lower bound of the noise variance: with `whiten` as shares of the variance of
        y, without in the units of y squared. Training starts from the larger one;
        training="none" takes noise_variance as it is, however small.
    place_variance : float or None
        Where the noise of places differs, what the variance of their effects (`place_variance_`)
        starts from; None for the start of the noise variance. With training="none" places have
        noise of their own only if this is given.
    rtol, training_rtol : float
        Tolerance on relative residuals: of the solve behind predictions, and in training. The
        former goes on until the mean is off by a fifth of the noise's deviation, down to rtol / 10;
        where places have noise of their own, by 3 %, however far that is.
    probes : int or None
        Random vectors for the log-determinant in training; None for 4 to 10, fewer for more points.
    rank : int or None
        Of the preconditioner; None for a cost model.
    pivoting : "random" or "greedy"
        How the preconditioner's points are chosen.
    residual_neighbours : int or None
        Nearest points by which the preconditioner corrects what its rank leaves; 0 for none, as
        in the paper; None for 12, from 50,000 points on 24.
    variance : "joint", "lanczos" or "exact"
        Default for `predict`: see there.
    neighbours : int or None
        Training points next to a new one that its joint variance takes in.
    inputs : "auto", "standard" or "ranks"
        What of an input counts, once it is whitened: its value, or the normal score of its rank
        among the training points, which helps where a few values are far from all others.
        "auto" asks the likelihood which of them it is, where more than 1,500 points train the
        default kernel; the standard otherwise. `inputs_` says what was taken.
    quality : "usual" or "best"
        The kernel, where none is given: Matérn-3/2, or a sum of Matérn-1/2 and Matérn-5/2 with
        lengthscales of their own, which takes several times as long; and see `noise_model` and
        `calibration`.
    whiten : bool
        Shift and scale X and y by the training set's means and standard deviations.
    engine, dtype : str
        As in KernelOperator.
    distributed : bool
        Under torchrun, or where a script has set up torch.distributed, share the work with the
        other ranks: all must then call `fit` and `predict`, with the same data.
    checkpoint : str, Path or None
        Folder that takes this fit up again where it was when it ended too early: call `fit`
        again with the same data and settings, on any number of ranks.
    on_step : callable or None
        Called after every step of training with a megagp.training.Step: the hyperparameters so far.
    random_state : int, RandomState or None
        Subset, probes and pivots. Same number, same data, same machine: same result.
    verbose : int
        1 for progress on stderr.

    Attributes
    ----------
    kernel_, noise_variance_ : learned, on whitened data
    noise_model_ : "constant" or "varying"; then noise_variance_ is the geometric mean over x, of
        places with one row
    place_variance_ : of what the function has at single places alone, on whitened data; 0 for none
    calibration_ : "none" or "local"
    inputs_ : "standard" or "ranks"
    log_marginal_likelihood_ : of the training set, in the units of y; from probes for large n
    n_iter_ : evaluations of the likelihood in training
    diagnostics_ : dict: per phase seconds, evaluations of the likelihood, `steps_at_most` (the
        plan), iterations, kernel evaluations; the share of pairs that are culled; residuals
    """

    posterior_: Posterior
    training: str
    _pack, _unpack = staticmethod(pack), staticmethod(unpack)

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        ard: bool = True,
        mean: str = "constant",
        noise_model: str = "auto",
        calibration: str = "auto",
        training: str = "pretrain",
        steps: int = 100,
        subset: int = 10_000,
        learning_rate: float = 0.1,
        noise_variance: float = 0.1,
        noise_floor: float = 1e-4,
        place_variance: float | None = None,
        rtol: float = 0.01,
        training_rtol: float = 0.01,
        max_iter: int = 1000,
        probes: int | None = None,
        rank: int | None = None,
        pivoting: str = "random",
        residual_neighbours: int | None = None,
        variance: str = "joint",
        neighbours: int | None = None,
        whiten: bool = True,
        inputs: str = "auto",
        quality: str = "usual",
        engine: str = "auto",
        dtype: str = "float32",
        distributed: bool = True,
        checkpoint: PathLike | None = None,
        on_step: Listener | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.kernel = kernel
        self.ard = ard
        self.mean = mean
        self.noise_model = noise_model
        self.calibration = calibration
        self.training = training
        self.steps = steps
        self.subset = subset
        self.learning_rate = learning_rate
        self.noise_variance = noise_variance
        self.noise_floor = noise_floor
        self.place_variance = place_variance
        self.rtol = rtol
        self.training_rtol = training_rtol
        self.max_iter = max_iter
        self.probes = probes
        self.rank = rank
        self.pivoting = pivoting
        self.residual_neighbours = residual_neighbours
        self.variance = variance
        self.neighbours = neighbours
        self.whiten = whiten
        self.inputs = inputs
        self.quality = quality
        self.engine = engine
        self.dtype = dtype
        self.distributed = distributed
        self.checkpoint = checkpoint
        self.on_step = on_step
        self.random_state = random_state
        self.verbose = verbose

    @property
    def noise_model_(self) -> str:
        """Whether the noise was found to vary: "constant" or "varying"."""
        check_is_fitted(self)
        found = self.posterior_.noise_scale, self.posterior_.place_noise
        return "constant" if all(part is None for part in found) else "varying"

    @property
    def place_variance_(self) -> float:
        """The variance of effects that single places have, on whitened data; 0 for none."""
        check_is_fitted(self)
        return self.posterior_.place_variance

    @property
    def calibration_(self) -> str:
        """Whether variances were found to be off in some places: "none" or "local"."""
        check_is_fitted(self)
        return "none" if self.posterior_.calibration is None else "local"

    @property
    def inputs_(self) -> str:
        """What of an input counted: "standard" or "ranks"."""
        check_is_fitted(self)
        return "standard" if self._x_scores is None else "ranks"

    @classmethod
    def paper(cls, **changes: Any) -> GPRegressor:
        """The settings of Wang et al. 2019: shared lengthscale, rank 100, its tolerances.

        Where noise is little the last solve goes beyond those, as it always does (`rtol`).
        """
        settings: dict[str, Any] = {
            "kernel": Matern32(PAPER_START, PAPER_START),
            "noise_variance": PAPER_START,
            "training": "paper",
            "training_rtol": 1.0,
            "probes": 10,
            "rtol": 0.01,
            "rank": 100,
            "pivoting": "greedy",
            "residual_neighbours": 0,
            "variance": "lanczos",
            "inputs": "standard",
            "noise_model": "constant",
        }
        return cls(**{**settings, **changes})

    def fit(self, X: ArrayLike, y: ArrayLike, noise_scale: ArrayLike | None = None) -> GPRegressor:
        """Learn hyperparameters from X (n x d) and y (n, or n x p), and cache what predicts.

        noise_scale: n positive numbers, the noise variance of each row relative to the one
        that is learned; 1 for all by default. With weights w that is 1 / w. There is no
        sample_weight, which for scikit-learn says how often a row was seen: rows that repeat also
        tell of the noise by how they differ, and a weight does not.
        """
        inputs, outputs = self._training_set(X, y)
        scale = _noise_scale(noise_scale, len(inputs))
        given = noise_scale is not None
        differs, varies = self._noise_may_differ(given), self._noise_may_vary(given)
        ranks = self._ranks()
        check_same(ranks, X=inputs, y=outputs, noise_scale=scale)
        with self._progress(ranks) as progress:
            self._fit_whitened(inputs, outputs, scale, differs, varies, progress, ranks)
        return self

    def predict(
        self,
        X: ArrayLike,
        return_std: bool = False,
        return_cov: bool = False,
        *,
        variance: str | None = None,
        latent: bool = False,
    ) -> Array | tuple[Array, Array]:
        """The mean at X (m, or m x p); with it standard deviations, or the joint covariance.

        The deviations are those of a new observation; with `latent`, of the function itself.
        What rows that share their inputs have said of a place counts for rows that equal these to
        the last bit.
        variance: "joint" (an upper bound from the preconditioner's pivots and each point's
        nearest training points, usually within 2 %), "lanczos" (the paper's cache, also an
        upper bound, often loose), "exact" (a solve for each point); each times the calibration,
        where there is one.
        """
        check_is_fitted(self)
        if return_std and return_cov:
            raise ValueError(
                "return_std, return_cov: expected at most one of them, got both; the covariance "
                "has the variances on its diagonal"
            )
        method = one_of("variance", self.variance if variance is None else variance, VARIANCES)
        X_new = self._whitened(X)
        ranks = self._ranks()
        posterior, undo = self.posterior_, self._y_whitening.undo
        if not (return_std or return_cov):
            return self._shaped(undo(spread(posterior.predict, X_new, ranks)))
        scale = self._y_whitening.scale
        noise = 0.0 if latent else posterior.noise_at(X_new, self.noise_variance_)
        if return_std:
            found = spread(lambda x: posterior.predict_with_variance(x, method), X_new, ranks)
            std = (posterior.calibration_at(X_new) * (found[:, -1] + noise)).sqrt()
            return self._shaped(undo(found[:, :-1])), self._shaped(std[:, None] * scale)
        mean = undo(spread(posterior.predict, X_new, ranks))
        C = self._covariance(X_new, noise)
        return self._shaped(mean), self._shaped(C[:, :, None] * scale.square())

    def sample_y(
        self,
        X: ArrayLike,
        n_samples: int = 1,
        random_state: int | np.random.RandomState | None = 0,
    ) -> Array:
        """Draws of the function at X from the posterior: m x n_samples, or m x p x n_samples."""
        check_is_fitted(self)
        rng = check_random_state(random_state)
        X_new = self._whitened(X)
        mean = self._y_whitening.undo(self.posterior_.predict(X_new))
        eigenvalues, Q = torch.linalg.eigh(self._covariance(X_new))
        root = Q * eigenvalues.clamp(min=0.0).sqrt()
        p = mean.shape[1]
        draws = torch.from_numpy(rng.standard_normal((p, len(X_new), n_samples)))
        found = mean.T[:, :, None] + (root @ draws) * self._y_whitening.scale[:, None, None]
        samples: Array = found.permute(1, 0, 2).numpy()
        return samples[:, 0] if self._one_output else samples

    def _fit_whitened(
        self,
        X: Tensor,
        Y: Tensor,
        scale: Tensor,
        differs: bool,
        varies: bool,
        progress: Progress,
        ranks: Ranks,
    ) -> None:
        """differs, varies: whether noise may be that of its place, and vary with x."""
        given = Rows(Y, scale, places(X, Y, scale))
        kernel = self._start_kernel(given.at.of(X))
        recipe = self._recipe()
        seed, checkpoint = self._checkpoint(kernel, X, Y, scale, ranks)
        start = self._start(given, differs, ranks)
        X, started = self._represented(X, start, kernel, seed, ranks)
        H = basis(X, self.mean)
        learner = Learner(
            X,
            H,
            kernel,
            self.mean,
            recipe,
            self._solving(ranks),
            self._least_noise,
            self.rtol,
            self.max_iter,
            self.neighbours,
            seed,
            progress,
            checkpoint,
            self.on_step,
        )
        recipes = [recipe, recipe.again()] if varies else [recipe]
        n, d = X.shape
        self._plan(n, recipes, progress)
        if self.verbose and n >= FORECAST_FROM and ranks.first:
            self._forecast(n, d, recipes, H.shape[1], Y.shape[1], ranks, progress)
        learned = learner.learn(start, started)
        if varies:
            learned = learner.vary_noise(learned, given)
        if self._calibrates:
            learned = learner.calibrate(learned)
        self._keep(learned, len(Y))
        if ranks.first:
            self._warn(learned)

    def _keep(self, learned: Learned, n_samples: int) -> None:
        self.posterior_, self.kernel_ = learned.posterior, learned.posterior.kernel
        self.noise_variance_ = learned.noise_variance
        last = learned.objective.last
        assert last is not None
        self.n_samples_ = n_samples
        self.log_marginal_likelihood_ = self._in_units_of_y(last.value)
        self.n_iter_ = max(1, sum(p.tally.evaluations for p in learned.phases))
        self.diagnostics_ = diagnostics(
            learned.phases,
            learned.objective,
            learned.result,
            learned.seconds,
            learned.kernel_evaluations,
        )

    def _checkpoint(
        self, kernel: Kernel, X: Tensor, Y: Tensor, scale: Tensor, ranks: Ranks
    ) -> tuple[int, Checkpoint | None]:
        """The seed of this fit, or of the one that it takes up again, and where it is kept."""
        seed = self._seed(ranks)
        if self.checkpoint is None:
            return seed, None
        facts = self._facts(kernel, X=X, y=Y, noise_scale=scale)
        seeded = isinstance(self.random_state, numbers.Integral)
        found = Checkpoint(self.checkpoint, facts, seed, seeded=seeded, ranks=ranks)
        return found.seed, found

    def _start(self, given: Rows, differs: bool, ranks: Ranks) -> Noisy:
        noise = self._start_noise()
        if not differs:
            return Noisy(given, noise)
        start = Noisy.of_places(given, float(noise.value), self._least_noise, ranks)
        if start.effects is not None and self.place_variance is not None:
            start.effects.variance.set(self.place_variance)
            if self.training == "none":
                start.noise.set(self.noise_variance)
        return start

    def _plan(self, n: int, recipes: list[Recipe], progress: Progress) -> None:
        """Say what is to come, and what each part weighs."""
        plan: list[tuple[str, int, float]] = []
        for i, recipe in enumerate(recipes):
            plan += [(NOISE_PHASE, 1, float(LEFT_OUT * n))] if i else []
            plan += [(p.name, p.steps, float(p.size) ** 2) for p in recipe.phases(n)]
            plan.append(("precompute", 1, 0.5 * n * n))
        if self._calibrates:
            plan.append((CALIBRATION_PHASE, 1, float(LEFT_OUT * n)))
        progress.start(plan)

    def _noise_may_differ(self, given: bool) -> bool:
        """given: as below."""
        asked = self.training != "none" or self.place_variance is not None
        return self.noise_model != "constant" and asked and not given

    def _noise_may_vary(self, given: bool) -> bool:
        """given: whether the user has said what the noise of each row is, up to a factor."""
        if self.noise_model == "varying" and given:
            raise ValueError(
                "noise_model: expected 'auto' or 'constant' with noise_scale, got 'varying'; leave "
                "noise_scale out to have it learned"
            )
        if self.noise_model == "auto":
            return self.quality == "best" and not given
        return self.noise_model == "varying"

    @property
    def _calibrates(self) -> bool:
        return self.calibration == "local" or (
            self.calibration == "auto" and self.quality == "best"
        )

    def _represented(
        self, X: Tensor, start: Noisy, kernel: Kernel, seed: int, ranks: Ranks
    ) -> tuple[Tensor, Started | None]:
        """The places among X, or their normal scores: as `inputs` says, or as explains Y better.

        Where that was asked of the data, also what training on START points has come to.
        """
        at = start.rows.at
        asked = self.inputs == "auto" and self.kernel is None and self.whiten
        asked = asked and self.training == "pretrain" and len(at.first) > DENSE_BELOW
        distinct = at.of(X)
        if self.inputs != "ranks" and not asked:
            return distinct, None
        scores = NormalScores.of(X)
        represented = scores.apply(distinct)
        chosen, started = 1, None
        if asked:
            chosen, started = choose_representation(
                (distinct, represented),
                at.Y,
                kernel,
                start.noise,
                at.noise_scale,
                mean=self.mean,
                solving=self._solving(ranks),
                noise_floor=self._least_noise,
                seed=seed,
                subset=self.subset,
                replicates=at.replicates,
                effects=start.effects,
            )
        if not chosen:
            return distinct, started
        self._x_scores = scores
        return represented, started

    def _facts(self, kernel: Kernel, **tensors: Tensor) -> dict[str, Any]:
        """All that a fit depends on but its seed, as plain JSON."""
        plain = [name for name in self.saved_settings() if name not in ("variance", "neighbours")]
        settings = {name: getattr(self, name) for name in plain}
        data = {name: digest(T) for name, T in tensors.items()}
        return {**settings, **data, "kernel": kernel_to_json(kernel)}

    def _probe_rtol(self) -> float:
        loose = min(LARGEST_PROBE_RTOL, PROBE_SLACK * self.training_rtol)
        return max(self.training_rtol, loose)

    def _forecast(
        self,
        n: int,
        d: int,
        recipes: list[Recipe],
        basis: int,
        outputs: int,
        ranks: Ranks,
        progress: Progress,
    ) -> None:
        """Say what a long fit will take, from a quick measurement of this machine."""
        solving, budget = self._solving(ALONE), keeping_budget(d)
        legs = []
        for recipe in recipes:
            legs += workload(
                n,
                d,
                recipe=recipe,
                solving=solving,
                outputs=outputs,
                basis=basis,
                cache_budget=budget,
            )
        rates = calibrate(d, columns=outputs + basis + solving.probes_for(n), solving=solving)
        for line in forecast(n, d, legs, rates, ranks.size).lines():
            progress.say(line)

    def _warn(self, learned: Learned) -> None:
        """One warning for all that did not converge."""
        phases, result, due = learned.phases, learned.result, learned.due
        missed = sum(p.tally.unconverged for p in phases)
        if not result.converged and not bool((result.residual <= due).all()):
            warnings.warn(
                f"GPRegressor: the solve behind predictions did not converge: "
                f"{result.explain(due)}",
                ConvergenceWarning,
                stacklevel=4,
            )
        elif missed:
            total = sum(p.tally.evaluations for p in phases)
            warnings.warn(
                f"GPRegressor: {missed} of {total} solves in training missed the tolerance "
                f"{self.training_rtol:.2g}; predictions rest on a converged solve, but the "
                "hyperparameters may not be the best: raise noise_floor or rank.",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _recipe(self) -> Recipe:
        return Recipe(
            method=self.training,
            subset=self.subset,
            steps=self.steps,
            learning_rate=self.learning_rate,
        )

    def _default_kernel(self, X: Tensor) -> Kernel:
        if self.quality == "usual":
            return super()._default_kernel(X)
        # A rough part and a smooth one, each with lengthscales of its own: the likelihood weighs
        # them, which is a choice of smoothness, input by input.
        rough = self._start_lengthscales(X)
        return Matern12(rough, 0.5) + Matern52(ROUGH_TO_SMOOTH * rough, 0.5)

    def _solving(self, ranks: Ranks) -> Solving:
        return Solving(
            rtol=self.training_rtol,
            probe_rtol=self._probe_rtol(),
            # A tolerance that zero meets needs iterations all the same; ten, as in the paper's.
            min_iter=10 if self.training_rtol >= 1 else 0,
            max_iter=min(self.max_iter, TRAINING_ITERATIONS),
            probes=self.probes,
            rank=self.rank,
            pivoting=self.pivoting,
            neighbours=self.residual_neighbours,
            engine=self.engine,
            dtype=self.dtype,
            ranks=ranks,
        )

    def _covariance(self, X_new: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        n = len(self.posterior_.X)
        if len(X_new) > most_rows(n):
            raise ValueError(
                f"X: expected at most {most_rows(n)} rows for a joint covariance given {n} points, "
                f"got {len(X_new)}; ask for return_std, or in parts"
            )
        C = self.posterior_.covariance(X_new)
        C.diagonal().add_(noise)
        root = self.posterior_.calibration_at(X_new).sqrt()
        return root[:, None] * C * root

    def _check_settings(self) -> None:
        self._check_kernel()
        one_of("mean", self.mean, MEANS)
        one_of("noise_model", self.noise_model, NOISE_MODELS)
        one_of("calibration", self.calibration, CALIBRATIONS)
        one_of("training", self.training, METHODS)
        one_of("variance", self.variance, VARIANCES)
        one_of("inputs", self.inputs, INPUTS)
        one_of("quality", self.quality, QUALITIES)
        if self.inputs == "ranks" and not self.whiten:
            raise ValueError("inputs: expected 'auto' or 'standard' with whiten=False, got 'ranks'")
        one_of("pivoting", self.pivoting, ("random", "greedy"))
        self._check_positive(
            ("noise_variance", "noise_floor", "rtol", "training_rtol", "learning_rate")
        )
        self._check_positive(("place_variance",), optional=True)
        self._check_whole(("steps", "subset", "max_iter"))
        self._check_whole(("probes",), optional=True)
        self._check_whole(("rank", "neighbours", "residual_neighbours"), least=0, optional=True)


def _noise_scale(noise_scale: ArrayLike | None, n: int) -> Tensor:
    if noise_scale is None:
        return torch.ones(n, dtype=torch.float64)
    scale = torch.from_numpy(np.array(noise_scale, dtype=np.float64))
    if scale.shape != (n,) or not bool((scale > 0).all() and scale.isfinite().all()):
        raise ValueError(
            f"noise_scale: expected {n} positive finite numbers, got shape {tuple(scale.shape)}, "
            f"smallest {float(scale.min()) if scale.numel() else float('nan')}"
        )
    return scale
