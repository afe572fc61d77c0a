"""In which order, on how many points and with which optimiser hyperparameters are learned."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from megagp.checkpoint import Checkpoint
from megagp.kernels import Hyperparameter, Kernel
from megagp.progress import Progress
from megagp.training.mute import mute
from megagp.training.objective import DENSE_BELOW, Objective, Solving, Tally
from megagp.training.optimisers import NO_START, Pair, adam, lbfgs
from megagp.training.parameters import Parameters, Vector
from megagp.training.place_effects import PlaceEffects
from megagp.training.replicates import Replicates

DENSE_STEPS = 100
START = 700
START_STEPS, PRETRAIN_STEPS, FINETUNE_STEPS = 40, 12, 3
# Decrease of the loss that is worth a step while there is more data to come.
PREPARED = 2e-3
# Each leg has at most so many times the points of the one before: an evaluation costs the square of
# that, and a leg that others have prepared needs fewer.
GROWTH = 8.5
METHODS = ("pretrain", "paper", "adam", "lbfgs", "none")


@dataclass(frozen=True)
class Recipe:
    """How to train.

    method:
    - "pretrain": L-BFGS on START random points, where the likelihood is exact and cheap, then on
      more and more of them, each leg at most GROWTH times the last (the second at most `subset`),
      then a few steps on everything; each leg ends when nothing is gained but noise, and hands on
      what it knows of the curvature;
    - "paper": 10 steps of L-BFGS and 10 of Adam on the subset, 3 of Adam on everything;
    - "adam" or "lbfgs": that many `steps` on everything;
    - "finetune": the steps on everything with which "pretrain" ends;
    - "none".
    Up to `dense_below` points the likelihood is exact and cheap, and "pretrain" is L-BFGS on
    everything to the end.
    """

    method: str = "pretrain"
    subset: int = 10_000
    steps: int = 100
    learning_rate: float = 0.1
    dense_below: int = DENSE_BELOW

    def again(self) -> Recipe:
        """For hyperparameters that are good already: the last leg alone."""
        return replace(self, method="none" if self.method == "none" else "finetune")

    def phases(self, n: int) -> list[Phase]:
        """What to do for n points, in order."""
        if self.method == "none":
            return []
        if self.method == "adam":
            return [Phase("train, Adam", n, "adam", self.steps)]
        if self.method == "lbfgs":
            return [Phase("train, L-BFGS", n, "lbfgs", self.steps)]
        m = min(n, self.subset)
        if self.method == "paper":
            return [
                Phase("pretrain, L-BFGS", m, "lbfgs", 10),
                Phase("pretrain, Adam", m, "adam", 10),
                Phase("finetune, Adam", n, "adam", 3),
            ]
        if n <= self.dense_below:
            return [Phase("train, L-BFGS", n, "lbfgs", DENSE_STEPS)]
        steps = PRETRAIN_STEPS if n <= self.subset else FINETUNE_STEPS
        last = Phase("finetune, L-BFGS", n, "lbfgs", steps, further=PRETRAIN_STEPS - steps)
        if self.method == "finetune":
            return [last]
        before = [Phase("start, L-BFGS", START, "lbfgs", START_STEPS, PREPARED)]
        before += [
            Phase(
                f"pretrain{f' {leg}' if leg > 1 else ''}, L-BFGS",
                size,
                "lbfgs",
                PRETRAIN_STEPS,
                PREPARED,
            )
            for leg, size in enumerate(self._between(n), 1)
        ]
        return [*(phase for phase in before if phase.size < n), last]

    def _between(self, n: int) -> list[int]:
        """Sizes in geometric progression between START and n, two legs at least."""
        legs = max(2, math.ceil(math.log(n / START, GROWTH)))
        sizes = [round(START * (n / START) ** (leg / legs)) for leg in range(1, legs)]
        return [min(self.subset, sizes[0]), *sizes[1:]]


@dataclass
class Phase:
    """One leg of training, and what it came to.

    further: steps beyond `steps`, as long as each is worth it.
    """

    name: str
    size: int
    optimiser: str
    steps: int
    tolerance: float = 0.0
    further: int = 0
    seconds: float = 0.0
    loss: float = float("nan")
    tally: Tally = field(default_factory=Tally)


@dataclass(frozen=True)
class Started:
    """What the leg on START points has come to, where it was made before.

    theta: of the least loss. memory: what is known of the curvature.
    """

    theta: Vector
    loss: float
    memory: list[Pair]
    evaluations: int
    seconds: float


@dataclass(frozen=True)
class Step:
    """Where training is after a step: the best hyperparameters so far, of this phase.

    kernel: a copy. loss: minus the log likelihood per observation, of the phase's points.
    place_variance: 0 where places have no effects.
    """

    phase: str
    points: int
    step: int
    loss: float
    kernel: Kernel
    noise_variance: float
    place_variance: float = 0.0


Listener: TypeAlias = Callable[[Step], None]


@dataclass(frozen=True)
class Trained:
    """The objective on all points, evaluated at the hyperparameters found, and the way there."""

    objective: Objective
    phases: list[Phase]


def train(
    X: Tensor,
    Y: Tensor,
    H: Tensor,
    kernel: Kernel,
    noise: Hyperparameter,
    noise_scale: Tensor,
    *,
    recipe: Recipe,
    solving: Solving,
    noise_floor: float,
    seed: int,
    progress: Progress,
    checkpoint: Checkpoint | None = None,
    on_step: Listener | None = None,
    started: Started | None = None,
    replicates: Replicates | None = None,
    effects: PlaceEffects | None = None,
) -> Trained:
    """Move the free hyperparameters of `kernel`, `noise` and `effects` to where Y is likely.

    on_step: hears of every step. started: stands for the leg on START points, if there is one.
    replicates, effects: as in Objective.
    """
    parameters = Parameters(
        kernel, noise, noise_floor, None if effects is None else effects.variance
    )
    n = len(X)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n))

    def objective_on(size: int) -> Objective:
        rows = slice(None) if size == n else order[:size]
        return Objective(
            X[rows],
            Y[rows],
            H[rows],
            kernel,
            noise,
            noise_scale[rows],
            parameters,
            solving,
            seed,
            progress.iteration,
            checkpoint,
            None if replicates is None else replicates.at(rows),
            None if effects is None else effects.at(rows),
        )

    phases = recipe.phases(n) if len(parameters.own) else []
    draw = 0
    memory: list[Pair] = []
    trend = 0.0  # how far the last leg has moved a hyperparameter
    started = started if phases and phases[0].size == START else None
    ahead = phases if started is None else phases[1:]
    objective = objective_on(ahead[0].size if ahead else n)
    if started is not None:
        parameters.set(started.theta)
        memory += started.memory
        _recount(phases[0], started, objective, progress, on_step)
    for phase in ahead:
        if len(objective.Y) != phase.size:
            before = objective
            objective = objective_on(phase.size)
            objective.preconditioner = before.preconditioner
            objective.preconditioner.neighbours = solving.neighbours_for(phase.size)
            objective.refine, objective.float32_failed = before.refine, before.float32_failed
            if before.float32_failed:  # on fewer points: so it would on more
                objective.operator = objective.operator.astype("float64", keep=True)
            del before  # and the preconditioner that it holds
        objective.tolerance = phase.tolerance
        begun_at = parameters.get()
        _run(phase, objective, recipe.learning_rate, progress, draw, memory, on_step, trend)
        # Of what was heard throughout: where it was not, steps are long and mean nothing.
        ends = begun_at, parameters.get()
        lost = [mute(parameters, theta, objective.spread) > 0 for theta in ends]
        moved = np.where(lost[0] | lost[1], 0.0, ends[1] - ends[0])
        trend = float(np.abs(moved).max(initial=0.0))
        # Adam draws probes at each step; the next phase goes on from the last, so that its
        # first evaluation is the one already made.
        draw += phase.steps if phase.optimiser == "adam" else 0
    if not phases and not np.isfinite(objective(parameters.get())[0]):
        raise ValueError(NO_START) from objective.failure
    return Trained(objective, phases)


def _recount(
    phase: Phase,
    started: Started,
    objective: Objective,
    progress: Progress,
    on_step: Listener | None,
) -> None:
    """Note and report a leg that was made before."""
    phase.loss, phase.seconds = started.loss, started.seconds
    phase.tally = Tally(started.evaluations, kernel_evaluations=started.evaluations * START**2)
    progress.phase(phase.name)
    progress.step(phase.steps, phase.loss)
    if on_step is not None:
        on_step(_snapshot(phase, objective, phase.steps, started.theta))


def _run(
    phase: Phase,
    objective: Objective,
    learning_rate: float,
    progress: Progress,
    draw: int,
    memory: list[Pair],
    on_step: Listener | None,
    trend: float,
) -> None:
    progress.phase(phase.name)
    start, objective.tally = time.perf_counter(), phase.tally

    def report(step: int, loss: float, theta: Vector) -> None:
        phase.loss = loss
        progress.step(step, loss)
        if on_step is not None:
            on_step(_snapshot(phase, objective, step, theta))

    if phase.optimiser == "adam":
        adam(objective, phase.steps, learning_rate, report, draw)
    else:
        lbfgs(objective, phase.steps, report, draw, memory, phase.further, trend)
    phase.seconds = time.perf_counter() - start


def _snapshot(phase: Phase, objective: Objective, step: int, theta: Vector) -> Step:
    """The step as others may keep it; the objective stays where it is."""
    parameters = objective.parameters
    here = parameters.get()
    parameters.set(theta)
    kernel, noise = objective.operator.kernel.copy(), float(objective.noise.value)
    effects = objective.effects
    place = 0.0 if effects is None else float(effects.variance.value)
    parameters.set(here)
    return Step(phase.name, phase.size, step, phase.loss, kernel, noise, place)
