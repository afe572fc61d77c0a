"""From rows to hyperparameters and the posterior that follows from them.

Once, and again where the errors that come out say that noise varies.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from megagp.checkpoint import Checkpoint
from megagp.estimators.rows import Noisy, Rows
from megagp.kernels import Kernel
from megagp.posterior import (
    LeftOut,
    Posterior,
    Scale,
    calibration_factor,
    noise_factor,
    precompute,
    rows_left_out,
)
from megagp.progress import Progress
from megagp.solvers import SolveResult
from megagp.training import Listener, Objective, Phase, Recipe, Solving, Started, train

# What progress and checkpoints call the search for factors on variances, and training points whose
# errors it looks at.
NOISE_PHASE, CALIBRATION_PHASE, LEFT_OUT = "noise", "calibration", 10_000


@dataclass(frozen=True)
class Learned:
    """What came of training and the last solve, which took `seconds`; start: the rows it was of.

    due: what the last solve had to reach, by column. kernel_evaluations: its own.
    """

    posterior: Posterior
    start: Noisy
    result: SolveResult
    due: Tensor
    objective: Objective
    phases: list[Phase]
    seconds: float
    kernel_evaluations: float
    seed: int

    @property
    def noise_variance(self) -> float:
        return float(self.start.noise.value)

    @cached_property
    def _places_left_out(self) -> LeftOut:
        return self.posterior.leave_one_out(self.objective.Y, LEFT_OUT, self.seed)

    def left_out(self, elsewhere: bool = False) -> LeftOut:
        """Errors of training rows that are predicted from all others.

        elsewhere: where places have noise of their own, of rows alone at theirs.
        """
        out = self._places_left_out
        Y, noise_scale, at, own = self.start.rows
        if at.replicates is None:
            return out
        if elsewhere and own is not None:
            return out.at(at.replicates.further[out.rows] == 0)
        # A row's own error is not to tell how large it may be.
        left_out = None if own is None else own.left_out / own.factor[at.place]
        return rows_left_out(out, at, Y, noise_scale, LEFT_OUT, self.seed, left_out)


@dataclass(frozen=True)
class Learner:
    """What learning rests on but for the rows: inputs of places, kernel and settings.

    X: n x d; H: n x q, the basis of `mean`. The kernel is moved to where Y is likely.
    """

    X: Tensor
    H: Tensor
    kernel: Kernel
    mean: str
    recipe: Recipe
    solving: Solving
    noise_floor: float
    rtol: float
    max_iter: int
    neighbours: int | None
    seed: int
    progress: Progress
    checkpoint: Checkpoint | None
    on_step: Listener | None

    def learn(self, start: Noisy, started: Started | None = None) -> Learned:
        """Hyperparameters, moved where they are, and the posterior that follows from them."""
        rows = start.rows
        trained = train(
            self.X,
            rows.at.Y,
            self.H,
            self.kernel,
            start.noise,
            rows.at.noise_scale,
            recipe=self.recipe,
            solving=self.solving,
            noise_floor=self.noise_floor,
            seed=self.seed,
            progress=self.progress,
            checkpoint=self.checkpoint,
            on_step=self.on_step,
            started=started,
            replicates=rows.at.replicates,
            effects=start.effects,
        )
        self.progress.phase("precompute")
        begin, count = time.perf_counter(), trained.objective.operator.count
        before = count.entries
        posterior, result, due = precompute(
            trained.objective,
            self.mean,
            rtol=self.rtol,
            max_iter=self.max_iter,
            neighbours=self.neighbours,
            callback=self.progress.iteration,
        )
        if rows.own is not None:
            posterior = replace(posterior, place_noise=rows.own.factor)
        seconds = time.perf_counter() - begin
        self.progress.step(1, trained.phases[-1].loss if trained.phases else float("nan"))
        return Learned(
            posterior,
            start,
            result,
            due,
            trained.objective,
            trained.phases,
            seconds,
            count.entries - before,
            self.seed,
        )

    def vary_noise(self, learned: Learned, given: Rows) -> Learned:
        """Learned again, with noise that varies with x, if the errors of rows say that it does."""
        floor = self.noise_floor

        def find() -> Scale | None:
            return noise_factor(
                learned.posterior, learned.left_out(), learned.noise_variance, floor, self.seed
            )

        factor = self._factor(NOISE_PHASE, learned, find)
        if factor is None:
            return learned
        learned.objective.operator.forget()  # what it has kept, before another is made
        typical = float(factor.at(self.X).log().mean().exp())
        factor = factor.times(1 / typical)
        ranks = self.solving.ranks
        start = learned.start.varied(given, factor.at(self.X), typical, floor, ranks)
        again = replace(self, recipe=self.recipe.again()).learn(start)
        posterior = replace(again.posterior, noise_scale=factor)
        return replace(again, posterior=posterior, phases=[*learned.phases, *again.phases])

    def calibrate(self, learned: Learned) -> Learned:
        """With variances multiplied by what the errors of rows say, where that varies."""

        def find() -> Scale | None:
            return calibration_factor(learned.posterior, learned.left_out(True), self.seed)

        found = self._factor(CALIBRATION_PHASE, learned, find)
        return replace(learned, posterior=replace(learned.posterior, calibration=found))

    def _factor(
        self, phase: str, learned: Learned, find: Callable[[], Scale | None]
    ) -> Scale | None:
        """How noise or errors vary, as rank 0 sees it; None if they do not."""
        self.progress.phase(phase)
        saver = learned.objective.saver(phase)
        kept = None if saver is None else saver.load()
        if kept is None:

            def packed() -> tuple[dict[str, Any], dict[str, Tensor]]:
                found = find()
                # A checkpoint that knows of no factor is not one that knows nothing.
                return {}, {"none": torch.ones(1)} if found is None else found.pack(phase)

            _, kept = self.solving.ranks.from_first(packed)
            if saver is not None:
                saver.keep(kept)
        self.progress.step(1, float("nan"))
        return None if "none" in kept else Scale.unpack(kept, phase, learned.posterior.d)
