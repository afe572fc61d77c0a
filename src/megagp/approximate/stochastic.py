"""Training on minibatches: Adam for hyperparameters and Z, natural gradients or Adam for q."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from megagp.approximate.cross import CrossCovariance
from megagp.approximate.parameters import InducingParameters
from megagp.approximate.search import Report
from megagp.approximate.svgp import (
    Batch,
    Gradient,
    Variational,
    natural_step,
    root_gradient,
    stochastic_bound,
    whitened,
)
from megagp.training.adam import Adam

VARIATIONAL = ("natural", "adam")
# Products of large matrices in a step. Its gradient is off by more than roundoff as it is.
PRODUCTS = torch.float32


@dataclass(frozen=True)
class Schedule:
    """How to go through the data.

    variational: "natural" for natural gradients of length `natural_rate`, "adam" for Adam.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    variational: str = "natural"
    natural_rate: float = 0.1
    jitter: float = 1e-6

    def steps(self, n: int) -> int:
        """Of one epoch."""
        return -(-n // self.batch_size)


@dataclass(frozen=True)
class Fitted:
    """q at the end, β (q x p), the bound averaged over the last epoch, and the largest jitter."""

    variational: Variational
    coefficients: Tensor
    bound: float
    steps: int
    largest_share: float


def train_stochastic(
    X: Tensor,
    Y: Tensor,
    H: Tensor,
    parameters: InducingParameters,
    schedule: Schedule,
    seed: int,
    report: Report,
) -> Fitted:
    """Move hyperparameters, Z, β and q uphill; `report` hears of each epoch."""
    run = _Run(X, Y, H, parameters, schedule)
    rng = np.random.default_rng(seed)
    bound = float("nan")
    for epoch in range(1, schedule.epochs + 1):
        order = torch.from_numpy(rng.permutation(len(X)))
        values = [run.step(rows) for rows in torch.split(order, schedule.batch_size)]
        bound = float(np.mean(values))
        report(epoch, -bound / Y.numel())
    return Fitted(run.q, run.beta, bound, run.steps, run.largest_share)


class _Run:
    """The state of training between steps."""

    def __init__(
        self, X: Tensor, Y: Tensor, H: Tensor, parameters: InducingParameters, schedule: Schedule
    ) -> None:
        self.X, self.Y, self.H = X, Y, H
        self.parameters, self.schedule = parameters, schedule
        m, p = len(parameters.Z), Y.shape[1]
        self.q = Variational.prior(m, p)
        self.beta = torch.zeros(H.shape[1], p, dtype=torch.float64)
        self.theta = torch.from_numpy(parameters.clip(parameters.get()))
        self.mu, self.root = self.q.mu.clone(), torch.eye(m, dtype=PRODUCTS)
        moved = [self.theta, self.beta]
        if schedule.variational == "adam":
            moved += [self.mu, self.root]
        self.adam = Adam(moved, schedule.learning_rate)
        self.steps = 0
        self.largest_share = 0.0

    @torch.no_grad()
    def step(self, rows: Tensor) -> float:
        """One step on these rows; the bound before it."""
        parameters, schedule = self.parameters, self.schedule
        parameters.set(self.theta.numpy())
        batch = Batch(self.X[rows], self.Y[rows] - self.H[rows] @ self.beta, len(self.X))
        tiles = CrossCovariance(parameters.kernel, parameters.Z).over(batch.X)
        at = whitened(tiles, schedule.jitter)
        noise = float(parameters.noise.value)
        if schedule.variational == "natural":
            # The first steps are a plain mean, so that the start at the prior is soon forgotten.
            rate = max(schedule.natural_rate, 1 / (self.steps + 1))
            self.q = natural_step(self.q, at.A, batch, noise, rate)
        else:
            self.q = Variational(self.mu, self.root.T)
        q = Variational(self.q.mu, self.q.R.to(PRODUCTS))
        found = stochastic_bound(at, batch, noise, q)
        self.steps += 1
        self.largest_share = max(self.largest_share, at.share)
        self._move(found, at.A, self.H[rows], batch.share / noise)
        return found.value

    def _move(self, found: Gradient, A: Tensor, H: Tensor, weight: float) -> None:
        """Adam's step, of the bound per observation."""
        size = self.Y.numel()
        slope = torch.from_numpy(self.parameters.gather(found.hyperparameters, found.Z))
        gradients = [-slope / size, H.T @ found.errors / size]
        if self.schedule.variational == "adam":
            p = self.Y.shape[1]
            by_root = root_gradient(A, found.RA, self.root.T, p, weight)
            gradients += [-found.mu / size, -by_root / size]
        self.adam.step(gradients)
        clipped = self.parameters.clip(self.theta.numpy())
        self.theta.copy_(torch.from_numpy(clipped))
