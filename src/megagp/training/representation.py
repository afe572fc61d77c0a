"""Which of several representations of the inputs makes the observations most likely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from megagp.distributed import ALONE
from megagp.kernels import Hyperparameter, Kernel
from megagp.mean import basis
from megagp.training.objective import Objective, Solving
from megagp.training.optimisers import lbfgs
from megagp.training.parameters import Parameters
from megagp.training.recipe import PREPARED, START, START_STEPS

# Nats per observation that another representation than the first must gain.
WORTH = 0.005


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
) -> int:
    """The index of the one (n x d each) with the largest likelihood, on START random points.

    Densities of Y given X can be compared whatever X is measured in. Hyperparameters are
    learned for each, from those of `kernel` and `noise`, which stay as they are.
    """
    rows = torch.from_numpy(np.random.default_rng(seed).permutation(len(Y))[:START])
    losses = []
    for X in representations:
        own, own_noise = kernel.copy(), Hyperparameter(noise.name, float(noise.value))
        objective = Objective(
            X[rows],
            Y[rows],
            basis(X[rows], mean),
            own,
            own_noise,
            noise_scale[rows],
            Parameters(own, own_noise, noise_floor),
            replace(solving, ranks=ALONE),
            seed,
        )
        objective.tolerance = PREPARED
        lbfgs(objective, START_STEPS, lambda *_: None)
        assert objective.last is not None
        losses.append(-objective.last.value / objective.Y.numel())
    # Rank 0's, lest another decide otherwise by a rounding.
    found = solving.ranks.agree(torch.tensor(losses, dtype=torch.float64))
    found[1:] += WORTH
    return int(found.argmin())
