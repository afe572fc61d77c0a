"""What training minimises: minus the log marginal likelihood per observation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from megagp.checkpoint import Checkpoint
from megagp.covariance import Covariance
from megagp.distributed import ALONE, Ranks
from megagp.kernels import Hyperparameter, Kernel
from megagp.likelihood import Evaluation, dense, stochastic
from megagp.memory import release_freed
from megagp.operator import KernelOperator
from megagp.preconditioners import AdaptivePreconditioner, Preconditioner
from megagp.solvers import Callback, Saver
from megagp.training.journal import pack, unpack
from megagp.training.parameters import Parameters, Vector
from megagp.training.place_effects import PlaceEffects
from megagp.training.replicates import Replicates

# Up to this n the dense way is taken; `make bench-solvers` prints where it is the quicker one.
DENSE_BELOW = 1500
# Differences of the loss (nats per observation) that mean nothing: of the dense way, and with
# probes fixed but solves to a tolerance.
EXACT_NOISE, STOCHASTIC_NOISE = 1e-7, 5e-4

# Probes, at least and at most, and how many times n they come to in between: the error of their
# mean, per observation, falls as the root of both.
PROBES, PROBED = (4, 10), 40_000
# Nearest predecessors in the preconditioner: the work for them grows with n, that of the products
# which they save with n².
NEIGHBOURS, MANY_NEIGHBOURS, MANY_POINTS = 12, 24, 50_000
# Of so many points, by how much the tolerance on probes is looser: it costs the likelihood less
# than their being few does, and ends solves before float32 does (docs/training.md).
MANY_SLACK = 2.0
# The probes being fixed, two losses differ by less noise than each has: this share of it.
COMMON = 0.6

# Where the rounding of entries to float32, ε √n k(x, x), is this much of the noise, what it changes
# in the likelihood is measured.
SUSPECT_ROUNDING = 0.06
# Nats per observation from which on entries are evaluated in float64: more where a product is dear.
# A change of c moves the best noise by about a share of 4 c: it goes as the noise to the power -2,
# against a curvature of ½.
LEAST_ROUNDING, ROUNDING_PER_POINT, MOST_ROUNDING = 2e-3, 3e-7, 0.03
# Of an evaluation; others are errors of the program or its data.
FAILURES = (ValueError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Solving:
    """How solves are made in training.

    rtol: tolerance on the relative residual for y; probe_rtol: for the probes, whose solves
    bias the gradient far less (docs/training.md), and MANY_SLACK times that for many points.
    min_iter: iterations at least. probes: random vectors for the log-determinant; None for
    enough (PROBES).
    dense_below: Cholesky up to this n. rank, pivoting, neighbours, budget: as in
    AdaptivePreconditioner; neighbours None for enough.
    """

    rtol: float = 0.01
    probe_rtol: float = 0.1
    max_iter: int = 200
    min_iter: int = 0
    probes: int | None = None
    dense_below: int = DENSE_BELOW
    rank: int | None = None
    pivoting: str = "random"
    neighbours: int | None = None
    budget: int = 1 << 29
    engine: str = "auto"
    dtype: str = "float32"
    ranks: Ranks = ALONE

    def probes_for(self, n: int) -> int:
        """How many probes for n points."""
        few, many = PROBES
        return max(few, min(many, PROBED // n)) if self.probes is None else self.probes

    def probe_rtol_for(self, n: int) -> float:
        """The tolerance on probes for n points."""
        return self.probe_rtol * (1.0 if n < MANY_POINTS else MANY_SLACK)

    def neighbours_for(self, n: int) -> int:
        """How many nearest predecessors for n points."""
        if self.neighbours is not None:
            return self.neighbours
        return NEIGHBOURS if n < MANY_POINTS else MANY_NEIGHBOURS


@dataclass
class Tally:
    """What evaluations have cost so far, and how their solves came out."""

    evaluations: int = 0
    iterations: int = 0
    kernel_evaluations: float = 0.0
    unconverged: int = 0
    ranks: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class State:
    """An evaluation, the θ it was made at, and the number of its probes."""

    theta: Vector
    draw: int
    evaluation: Evaluation


class Objective:
    """θ -> (loss, gradient), loss = -log p(Y) / (n p).

    X: n x d; Y: n x p; H: n x q; noise_scale: n, the noise variance of each point relative
    to `noise`. replicates: where Y are means of rows, what those say beyond them; the likelihood is
    then that of the rows. effects: of places, which their rows share; None for none. The kernel,
    `noise` and `effects` hold the hyperparameters of the last call.
    """

    def __init__(
        self,
        X: Tensor,
        Y: Tensor,
        H: Tensor,
        kernel: Kernel,
        noise: Hyperparameter,
        noise_scale: Tensor,
        parameters: Parameters,
        solving: Solving,
        seed: int,
        callback: Callback | None = None,
        checkpoint: Checkpoint | None = None,
        replicates: Replicates | None = None,
        effects: PlaceEffects | None = None,
    ) -> None:
        self.Y, self.H, self.noise, self.noise_scale = Y, H, noise, noise_scale
        self.effects = effects
        self.replicates = replicates
        self.parameters, self.solving, self.seed = parameters, solving, seed
        self.spread = X.detach().double().var(0, correction=0).cpu().numpy()  # of each input
        self.callback, self.checkpoint = callback, checkpoint
        self.operator = KernelOperator(
            X,
            kernel,
            engine=solving.engine,
            dtype=solving.dtype,
            cache_budget=None,
            ranks=solving.ranks,
        )
        self.preconditioner = AdaptivePreconditioner(
            rank=solving.rank,
            pivoting=solving.pivoting,
            neighbours=solving.neighbours_for(len(Y)),
            budget=solving.budget,
            seed=seed,
        )
        self.tally = Tally()
        self.tolerance = 0.0
        self._state: State | None = None
        # Why the last θ without a finite loss had none.
        self.failure: Exception | None = None
        self._rank = 0
        # Solutions for Y and H are held to residuals in float64.
        self.refine = False
        # Solves with entries in float32 did not converge.
        self.float32_failed = False
        self._P: Preconditioner | None = None

    @property
    def size(self) -> int:
        """Observations: of all rows and outputs."""
        return self.Y.numel() + (0 if self.replicates is None else self.replicates.count)

    @property
    def noise_level(self) -> float:
        """What differences of the loss mean nothing: roundoff, or probes and loose solves.

        A phase of training that only prepares another may set a larger `tolerance`.
        """
        if len(self.Y) <= self.solving.dense_below:
            return max(self.tolerance, EXACT_NOISE)
        if self.last is None:
            return max(self.tolerance, STOCHASTIC_NOISE)
        error = max(COMMON * self.last.standard_error, self.last.rounding) / self.size
        return max(self.tolerance, STOCHASTIC_NOISE, error)

    def covariance(self) -> Covariance:
        """K̂ at the present hyperparameters."""
        noise = self.noise.value.detach() * self.noise_scale
        if self.effects is None:
            return Covariance(self.operator, noise)
        effects = self.effects.variances()
        return Covariance(self.operator, noise + effects, effects)

    def __call__(
        self, theta: Vector, draw: int | None = 0, *, hold: bool = False
    ) -> tuple[float, Vector]:
        """Loss and gradient at θ; not finite where there is none.

        draw: number of the set of probes; None for whichever the last call at this θ used.
        hold: with the pivots of the last call, so that losses can be compared.
        """
        self.parameters.set(theta)
        at = self._state
        same = at is not None and np.array_equal(at.theta, theta) and draw in (None, at.draw)
        if not same:
            self.failure = None
            try:
                found = self._evaluate(draw or 0, hold)
            except FAILURES as error:
                # No positive definite K̂ at this θ: the optimiser shortens its step. What the
                # traceback holds on to is as large as a fit.
                self.failure = error.with_traceback(None)
                return self._agreed(np.inf, np.full(len(theta), np.nan))
            self._state = State(theta.copy(), draw or 0, found)
        size = self.size
        assert self.last is not None
        gradient = self.parameters.gather(self.last.gradient)
        return self._agreed(-self.last.value / size, -gradient / size)

    def _agreed(self, loss: float, gradient: Vector) -> tuple[float, Vector]:
        """What rank 0 found, so that all take the same step."""
        both = self.solving.ranks.agree(torch.from_numpy(np.append(gradient, loss))).numpy()
        return float(both[-1]), both[:-1]

    def renewed(self) -> bool:
        """Evaluate again where the objective is, if other pivots would now serve better."""
        at = self._state
        if at is None or len(self.Y) <= self.solving.dense_below:
            return False
        if not self.preconditioner.outdated(self.covariance(), self._columns):
            return False
        self._state = State(at.theta, at.draw, self._evaluate(at.draw, False))
        return True

    @property
    def _columns(self) -> int:
        return self.Y.shape[1] + self.H.shape[1] + self.solving.probes_for(len(self.Y))

    @property
    def last(self) -> Evaluation | None:
        """The evaluation at the present hyperparameters."""
        return None if self._state is None else self._state.evaluation

    def state(self) -> State:
        """Where the objective is, to come back to."""
        assert self._state is not None
        return self._state

    def restore(self, state: State) -> None:
        """Go back to a θ and the evaluation that was made there."""
        self.parameters.set(state.theta)
        self._state = state

    def _evaluate(self, draw: int, hold: bool) -> Evaluation:
        found = self._of_means(draw, hold)
        if self.replicates is None:
            return found
        value, slope = self.replicates.log_density(float(self.noise.value))
        by_name = {**found.gradient, "noise_variance": found.gradient["noise_variance"] + slope}
        return replace(found, value=found.value + value, gradient=by_name)

    def _of_means(self, draw: int, hold: bool) -> Evaluation:
        covariance = self.covariance()
        self.tally.evaluations += 1
        count, before = self.operator.count, self.operator.count.entries
        try:
            if len(self.Y) <= self.solving.dense_below:
                return dense(covariance, self.Y, self.H)
            found = self._recalled() or self._noted(covariance, draw, hold)
        finally:  # a trial that fails has cost as much
            self.tally.kernel_evaluations += count.entries - before
        self.tally.iterations += int(found.solve.iterations.max())
        self.tally.unconverged += not found.solve.converged
        self.tally.ranks.append(self._rank)
        return found

    def saver(self, purpose: str, detail: str = "") -> Saver | None:
        """Where a solve at the present hyperparameters keeps its state."""
        if self.checkpoint is None:
            return None
        return self.checkpoint.solving(purpose, self.parameters.get(), detail)

    def _noted(self, covariance: Covariance, draw: int, hold: bool) -> Evaluation:
        """An evaluation by solves; if it fails, the checkpoint knows."""
        try:
            return self._solved(covariance, draw, hold)
        except FAILURES as error:
            if self.checkpoint is not None:
                theta = self.parameters.get().tolist()
                self.checkpoint.fail({"theta": theta, "says": str(error)})
            raise

    def _solved(self, covariance: Covariance, draw: int, hold: bool) -> Evaluation:
        """An evaluation by solves, noted in the checkpoint."""
        before = self.operator.count.entries
        self._P = None  # not both at once: each takes most of the memory of a fit
        if len(self.Y) >= MANY_POINTS:
            release_freed()
        P = self._P = self.preconditioner.make(covariance, self._columns, hold)
        start = None if self.last is None else self.last.solutions
        found = self._stochastic(covariance, P, draw, start)
        failed, single = not found.solve.converged, self.operator.dtype == torch.float32
        self.refine = found.refined
        rounding = found.rounding / self.size
        rounding = float(self.solving.ranks.agree(torch.tensor(rounding, dtype=torch.float64)))
        if single and failed and hold and len(self.Y) >= MANY_POINTS and self._state is not None:
            # A trial, and in float64 one of so many points takes longer than the whole search has:
            # a shorter step, which float32 may serve, comes first.
            raise ValueError(
                "kernel: expected hyperparameters at which solves with entries in float32 "
                f"converge, got residuals up to {float(found.solve.residual.max()):.2g}"
            )
        if single and (failed or rounding > self._most_rounding):
            # Entries rounded to float32 are not those of a positive definite matrix any more, or
            # of one too far from K̂: from here on in float64.
            self.operator.forget()
            self.operator, self.refine = self.operator.astype("float64", keep=True), False
            self.float32_failed = failed
            start = found.solutions if found.solve.converged else start
            found = self._stochastic(self.covariance(), P, draw, start)
        self.preconditioner.learn(P, float(found.solve.iterations.double().mean()))
        self._rank = P.rank
        if self.checkpoint is not None:
            entry, state = pack(found)
            pivoting, pivots = self.preconditioner.state()
            facts = {"theta": self.parameters.get().tolist(), "loss": -found.value, "rank": P.rank}
            facts |= {"n": len(self.Y), "dtype": str(self.operator.dtype), "refine": self.refine}
            facts["float32_failed"] = self.float32_failed
            facts["kernel_evaluations"] = self.operator.count.entries - before
            self.checkpoint.record(
                {**entry, **facts, "preconditioner": pivoting}, {**state, **pivots}
            )
        return found

    def _stochastic(
        self, covariance: Covariance, P: Preconditioner, draw: int, start: Tensor | None
    ) -> Evaluation:
        dtype = covariance.operator.dtype
        single = dtype == torch.float32 and self.preconditioner.neighbours > 0
        return stochastic(
            covariance,
            self.Y,
            self.H,
            P,
            torch.Generator().manual_seed(self.seed + 7919 * draw),
            probes=self.solving.probes_for(len(self.Y)),
            rtol=self.solving.rtol,
            probe_rtol=self.solving.probe_rtol_for(len(self.Y)),
            max_iter=self.solving.max_iter,
            min_iter=self.solving.min_iter,
            start=start,
            callback=self.callback,
            saver=self.saver("probes", f"{draw}, {dtype}, {self.refine}"),
            precise=covariance.precise() if single else None,
            precise_saver=self.saver("targets", f"{draw}, {dtype}"),
            refine=self.refine,
            weigh_rounding=single and self._rounding() > SUSPECT_ROUNDING,
        )

    def _rounding(self) -> float:
        """By how much rounding to float32 changes K, as a matrix, relative to the noise."""
        size = float(self.operator.diagonal().max()) * math.sqrt(len(self.Y))
        size *= self.operator.statistics.summed
        return torch.finfo(torch.float32).eps / 2 * size / float(self.covariance().noise.min())

    @property
    def _most_rounding(self) -> float:
        return max(LEAST_ROUNDING, min(ROUNDING_PER_POINT * len(self.Y), MOST_ROUNDING))

    def latest_preconditioner(self) -> Preconditioner:
        """That of the last evaluation, at these hyperparameters or next to them."""
        if self._P is None:
            self._P = self.preconditioner.make(self.covariance(), self._columns)
        return self._P

    def _recalled(self) -> Evaluation | None:
        """The evaluation that a checkpoint has of an earlier run, if it has one left."""
        if self.checkpoint is None:
            return None
        theta = self.parameters.get()
        failure = self.checkpoint.failed(theta)
        if failure is not None:
            raise ValueError(failure["says"])
        recalled = self.checkpoint.recall(theta)
        if recalled is None:
            return None
        entry, state = recalled
        self.preconditioner.restore(entry["preconditioner"], state.get("pivots"))
        self._rank = entry["rank"]
        self.operator.count.entries += entry.get("kernel_evaluations", 0.0)
        dtype = entry["dtype"].removeprefix("torch.")
        self.operator = self.operator.astype(dtype, keep=True)
        self.refine, self.float32_failed = entry["refine"], entry["float32_failed"]
        return unpack(entry, state, self.Y, self.H)
