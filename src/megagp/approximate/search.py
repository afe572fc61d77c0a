"""Adam and L-BFGS on the collapsed bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from megagp.approximate.cross import CrossCovariance, Room, Tiles
from megagp.approximate.factor import factorise
from megagp.approximate.parameters import InducingParameters
from megagp.approximate.sgpr import Collapsed, collapse, gradient, moments
from megagp.distributed import ALONE, Ranks
from megagp.training.adam import Adam
from megagp.training.optimisers import NO_START
from megagp.training.parameters import Vector

# Pairs that L-BFGS remembers.
MEMORY = 20
# Rounding may be magnified so much (`Factor`) where products are float32: of the gradient by Z it
# then takes about a hundredth.
MAGNIFIED = 1e6

Report: TypeAlias = Callable[[int, float], None]  # step, loss


class CollapsedLoss:
    """θ -> (loss, gradient), loss = -bound / (n p); it remembers the best θ.

    X: n x d; Y: n x p; H: n x q. ranks: share out the rows; `lead` says who calls.
    products: the type of products over rows, wherever rounding leaves them right (`evaluate`).
    evaluations: how many there were, by type.
    """

    def __init__(
        self,
        X: Tensor,
        Y: Tensor,
        H: Tensor,
        parameters: InducingParameters,
        jitter: float,
        ranks: Ranks = ALONE,
        products: torch.dtype = torch.float64,
    ) -> None:
        self.n, self.p, self.ranks = len(X), Y.shape[1], ranks
        rows = ranks.rows(self.n)
        self.X, self.TH = X[rows], torch.cat([Y[rows], H[rows]], dim=1)
        self.parameters, self.jitter, self.products = parameters, jitter, products
        self._room = Room(products)
        self.evaluations: Counter[torch.dtype] = Counter()
        self.largest_share = 0.0
        start = torch.from_numpy(parameters.clip(parameters.get()))
        self.best = np.inf, ranks.agree(start).numpy()

    def evaluate(self, products: torch.dtype = torch.float64) -> tuple[Collapsed, Tiles]:
        """The bound at the present hyperparameters and Z, and what its gradient is made of.

        products: the type of products over rows; float64 where K(Z, Z) is too near to singular.
        """
        at, ranks = self.parameters, self.ranks
        cross = CrossCovariance(at.kernel, at.Z)
        factor = factorise(cross.square(), self.jitter, ranks)
        if products != torch.float64 and not self._agreed(factor.magnification < MAGNIFIED):
            products = torch.float64
        if self._room.dtype != products:
            self._room = Room(products)
        tiles = cross.over(self.X, self._room)
        found = moments(tiles, self.TH, factor, ranks)
        self.evaluations[products] += 1
        self.largest_share = max(self.largest_share, factor.share)
        return collapse(found, self.n, self.p, float(at.noise.value), ranks), tiles

    def lead(self, search: Callable[[], None]) -> None:
        """search() on rank 0 alone: the others evaluate wherever it does.

        So no rank takes a decision of its own, whatever its roundoff.
        """
        if self.ranks.first:
            try:
                search()
            except ValueError:  # of other errors ranks learn as this one ends
                self._tell(None)
                raise
            self._tell(None)
            return
        while (theta := self._tell(None)) is not None:
            self._evaluate(theta)
        if not np.isfinite(self.best[0]):  # as rank 0 says
            raise ValueError(NO_START)

    def _tell(self, theta: Vector | None) -> Vector | None:
        """The θ of rank 0 on every rank; None at the end."""
        told = np.zeros(len(self.best[1]) + 1)
        if theta is not None:
            told[0], told[1:] = 1.0, theta
        told = self.ranks.agree(torch.from_numpy(told)).numpy()
        return told[1:].copy() if told[0] else None

    def __call__(self, theta: Vector) -> tuple[float, Vector]:
        self._tell(theta)
        return self._evaluate(theta)

    def _evaluate(self, theta: Vector) -> tuple[float, Vector]:
        self.parameters.set(theta)
        loss, slope = self._loss(self.products)
        if self.products != torch.float64 and not self._agreed(
            np.isfinite(loss) and bool(np.isfinite(slope).all())
        ):
            loss, slope = self._loss(torch.float64)
        if loss < self.best[0]:
            self.best = loss, theta.copy()
        return loss, slope

    def _loss(self, products: torch.dtype) -> tuple[float, Vector]:
        """The loss and its gradient at the present θ."""
        try:
            at, tiles = self.evaluate(products)
        except ValueError:
            # No factor at this θ, even with jitter raised: a wall to the optimiser.
            return np.inf, np.zeros_like(self.best[1])
        by_value, by_Z = gradient(at, tiles, self.TH, self.n, self.p, self.ranks)
        size = self.n * self.p
        loss = float(self.ranks.agree(torch.tensor(-at.value / size, dtype=torch.float64)))
        return loss, -self.parameters.gather(by_value, by_Z) / size

    def _agreed(self, holds: bool) -> bool:
        """What rank 0 says: roundoff may differ from rank to rank."""
        return bool(self.ranks.agree(torch.tensor(float(holds))))

    def settle(self) -> Collapsed:
        """Go to the best θ seen, and say what the bound is there."""
        self.parameters.set(self.best[1])
        return self.evaluate()[0]


def adam(objective: CollapsedLoss, steps: int, learning_rate: float, report: Report) -> None:
    """Adam on all of θ; the best is kept."""
    theta = torch.from_numpy(objective.best[1].copy())
    optimiser = Adam([theta], learning_rate)
    for step in range(1, steps + 1):
        loss, slope = objective(theta.numpy().copy())
        if not (np.isfinite(loss) and np.isfinite(slope).all()):
            if not np.isfinite(objective.best[0]):
                raise ValueError(NO_START)
            # Back to the best, more slowly.
            theta.copy_(torch.from_numpy(objective.best[1]))
            optimiser.rate /= 2
            continue
        optimiser.step([torch.from_numpy(slope)])
        theta.copy_(torch.from_numpy(objective.parameters.clip(theta.numpy())))
        report(step, objective.best[0])
    objective(theta.numpy().copy())


def lbfgs(objective: CollapsedLoss, steps: int, report: Report) -> None:
    """L-BFGS-B on all of θ, until nothing is gained or `steps` are done."""
    done = 0

    def after(_: Vector) -> None:
        nonlocal done
        done += 1
        report(done, objective.best[0])

    minimize(
        objective,
        objective.best[1],
        jac=True,
        method="L-BFGS-B",
        bounds=objective.parameters.bounds(),
        callback=after,
        options={"maxiter": steps, "maxfun": 2 * steps + 10, "maxcor": MEMORY, "ftol": 1e-7},
    )
    if not np.isfinite(objective.best[0]):
        raise ValueError(NO_START)
