"""Which of several representations of the inputs makes the observations most likely."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from megagp.distributed import ALONE, Ranks
from megagp.kernels import Hyperparameter, Kernel
from megagp.mean import basis
from megagp.training.objective import Objective, Solving
from megagp.training.optimisers import MEMORY, Pair, lbfgs
from megagp.training.parameters import Parameters
from megagp.training.place_effects import PlaceEffects
from megagp.training.recipe import PREPARED, PRETRAIN_STEPS, START, START_STEPS, Started
from megagp.training.replicates import Replicates

# Nats per observation that the first representation must gain over another. In doubt it is not
# taken: likelihoods of training points say little of new ones far outside, which scores bring near.
WORTH = 0.02
# Differences that START points can't tell from none: the likelihoods of single observations differ
# by about one.
UNDECIDED = 0.05


def choose_representation(
    representations: Sequence[Tensor],
    Y: Tensor,
    kernel: Kernel,
    noise: Hyperparameter,
    noise_scale: Tensor,
    *,
    mean: str,
    solving: Solving,
    noise_floor: float,
    seed: int,
    subset: int,
    replicates: Replicates | None = None,
    effects: PlaceEffects | None = None,
) -> tuple[int, Started]:
    """The index of the one (n x d each) with the largest likelihood, on START random points.

    But for WORTH. Densities of Y given X can be compared whatever X is measured in.
    Hyperparameters are learned for each, from those of `kernel`, `noise` and `effects`, which stay
    as they are. Where they are close, √(START n) points decide, at most `subset`. Also: what
    training with the same seed on START points of that one comes to.
    """
    n = len(Y)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n))
    candidates = [_Candidate(X, kernel, noise, noise_floor, effects) for X in representations]
    legs = [(START, START_STEPS), (min(subset, round(math.sqrt(START * n))), PRETRAIN_STEPS)]
    for size, steps in legs:
        # The few are quicker on a rank alone than between ranks.
        alone = size == START
        learn = partial(
            _Candidate.learn,
            Y=Y,
            mean=mean,
            noise_scale=noise_scale,
            replicates=replicates,
            rows=order[:size],
            solving=replace(solving, ranks=ALONE) if alone else solving,
            seed=seed,
            steps=steps,
        )
        if alone:
            _share_out(candidates, learn, solving.ranks)
            started = [candidate.started() for candidate in candidates]
        else:
            for candidate in candidates:
                learn(candidate)
        # Rank 0's, lest another decide otherwise by a rounding.
        losses = [candidate.loss for candidate in candidates]
        found = solving.ranks.agree(torch.tensor(losses, dtype=torch.float64))
        if size >= n or float((found - found[0]).abs().max()) > UNDECIDED:
            break
    found[0] += WORTH
    chosen = int(found.argmin())
    return chosen, started[chosen]


def _share_out(
    candidates: Sequence[_Candidate], learn: Callable[[_Candidate], None], ranks: Ranks
) -> None:
    """Each is trained by one of the ranks, and all know what came of it."""
    for i, candidate in enumerate(candidates):
        if i % ranks.size == ranks.rank:
            try:
                learn(candidate)
            except ValueError:
                candidate.loss = math.inf
    mine = torch.arange(len(candidates)) % ranks.size == ranks.rank
    found = torch.stack([candidate.pack() for candidate in candidates])
    for candidate, packed in zip(
        candidates, ranks.sum(torch.where(mine[:, None], found, 0.0)), strict=True
    ):
        candidate.unpack(packed)
        if not math.isfinite(candidate.loss):
            learn(candidate)  # so that all ranks say why


class _Candidate:
    """A representation, with hyperparameters of its own, and the loss to which they came."""

    def __init__(
        self,
        X: Tensor,
        kernel: Kernel,
        noise: Hyperparameter,
        noise_floor: float,
        effects: PlaceEffects | None,
    ) -> None:
        self.X, self.kernel = X, kernel.copy()
        self.noise = copy(noise)
        self.effects = None if effects is None else effects.copy()
        place = None if self.effects is None else self.effects.variance
        self.parameters = Parameters(self.kernel, self.noise, noise_floor, place)
        self.memory: list[Pair] = []
        self.loss, self.evaluations, self.seconds = math.inf, 0, 0.0

    def learn(
        self,
        Y: Tensor,
        mean: str,
        noise_scale: Tensor,
        replicates: Replicates | None,
        rows: Tensor,
        solving: Solving,
        seed: int,
        steps: int,
    ) -> None:
        """Train on these rows, from where the hyperparameters are."""
        X, start = self.X[rows], time.perf_counter()
        objective = Objective(
            X,
            Y[rows],
            basis(X, mean),
            self.kernel,
            self.noise,
            noise_scale[rows],
            self.parameters,
            solving,
            seed,
            replicates=None if replicates is None else replicates.at(rows),
            effects=None if self.effects is None else self.effects.at(rows),
        )
        objective.tolerance = PREPARED
        lbfgs(objective, steps, lambda *_: None, memory=self.memory)
        assert objective.last is not None
        self.loss = -objective.last.value / objective.size
        self.evaluations = objective.tally.evaluations
        self.seconds = time.perf_counter() - start

    def started(self) -> Started:
        """What training came to."""
        theta, memory = self.parameters.get().copy(), list(self.memory)
        return Started(theta, self.loss, memory, self.evaluations, self.seconds)

    def pack(self) -> Tensor:
        """All that training has changed, as one vector of a length that it does not change."""
        theta = self.parameters.get()
        pairs = np.zeros((MEMORY, 2, len(theta)))
        pairs[: len(self.memory)] = self.memory or 0.0
        numbers = self.loss, self.evaluations, self.seconds, len(self.memory)
        return torch.from_numpy(np.r_[numbers, theta, pairs.ravel()])

    def unpack(self, packed: Tensor) -> None:
        """Be as the one was that packed this."""
        self.loss, evaluations, self.seconds, count = packed[:4].tolist()
        self.evaluations = int(evaluations)
        theta, pairs = np.split(packed[4:].numpy(), [len(self.parameters.get())])
        self.parameters.set(theta)
        self.memory = [(s, t) for s, t in pairs.reshape(MEMORY, 2, len(theta))[: int(count)]]
