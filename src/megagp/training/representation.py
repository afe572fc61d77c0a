"""Which of several representations of the inputs makes the observations most likely."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from megagp.distributed import ALONE
from megagp.kernels import Hyperparameter, Kernel
from megagp.mean import basis
from megagp.training.objective import Objective, Solving
from megagp.training.optimisers import Pair, lbfgs
from megagp.training.parameters import Parameters
from megagp.training.recipe import PREPARED, PRETRAIN_STEPS, START, START_STEPS

# Nats per observation that another representation than the first must gain.
WORTH = 0.005
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
) -> int:
    """The index of the one (n x d each) with the largest likelihood, on START random points.

    Densities of Y given X can be compared whatever X is measured in. Hyperparameters are
    learned for each, from those of `kernel` and `noise`, which stay as they are. Where they are
    close, √(START n) points decide, at most `subset`.
    """
    n = len(Y)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n))
    candidates = [_Candidate(X, kernel, noise, noise_floor) for X in representations]
    legs = [(START, START_STEPS), (min(subset, round(math.sqrt(START * n))), PRETRAIN_STEPS)]
    for size, steps in legs:
        rows = order[:size]
        # The few are quicker on each rank than between them.
        way = replace(solving, ranks=ALONE) if size == START else solving
        losses = [c.learn(Y, mean, noise_scale, rows, way, seed, steps) for c in candidates]
        # Rank 0's, lest another decide otherwise by a rounding.
        found = solving.ranks.agree(torch.tensor(losses, dtype=torch.float64))
        found[1:] += WORTH
        if size >= n or float((found - found[0]).abs().max()) > UNDECIDED:
            break
    return int(found.argmin())


class _Candidate:
    """A representation, with hyperparameters of its own."""

    def __init__(
        self, X: Tensor, kernel: Kernel, noise: Hyperparameter, noise_floor: float
    ) -> None:
        self.X, self.kernel = X, kernel.copy()
        self.noise = Hyperparameter(noise.name, float(noise.value))
        self.parameters = Parameters(self.kernel, self.noise, noise_floor)
        self.memory: list[Pair] = []

    def learn(
        self,
        Y: Tensor,
        mean: str,
        noise_scale: Tensor,
        rows: Tensor,
        solving: Solving,
        seed: int,
        steps: int,
    ) -> float:
        """The least loss that training on these rows comes to."""
        X = self.X[rows]
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
        )
        objective.tolerance = PREPARED
        lbfgs(objective, steps, lambda *_: None, memory=self.memory)
        assert objective.last is not None
        return -objective.last.value / objective.Y.numel()
