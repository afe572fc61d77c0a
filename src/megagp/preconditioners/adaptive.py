"""A preconditioner that follows the hyperparameters: pivots kept while they serve."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from megagp.covariance import Covariance
from megagp.kernels import Hyperparameter, Kernel
from megagp.neighbours import metric_features
from megagp.preconditioners.full_scale import FullScale
from megagp.preconditioners.pivoted_cholesky import PivotedCholesky
from megagp.preconditioners.pivots import greedy_pivots, random_pivots
from megagp.preconditioners.predecessors import Predecessors, nearest_predecessors
from megagp.preconditioners.rank import choose_rank, cost

# Pivots are drawn anew when a hyperparameter has moved by this factor since they were.
MOVED = 3.0
# A different rank must promise this much less work to be worth other pivots.
WORTH = 0.75

Preconditioner: TypeAlias = PivotedCholesky | FullScale


class AdaptivePreconditioner:
    """Makes P for K̂ again and again as its hyperparameters move.

    rank: None for the cost model of rank.py, fed with the iterations that `learn` is told.
    pivoting: "random" or "greedy". neighbours: nearest predecessors that correct what the pivots
    leave (full_scale.py); 0 for pivoted Cholesky alone. budget: bytes for L.
    """

    def __init__(
        self,
        *,
        rank: int | None = None,
        pivoting: str = "random",
        neighbours: int = 0,
        budget: int = 1 << 29,
        seed: int = 0,
    ) -> None:
        self.rank, self.pivoting, self.budget, self.seed = rank, pivoting, budget, seed
        self.neighbours = neighbours
        self._predecessors: Predecessors | None = None
        self.seen: tuple[int, float] | None = None
        self._pivots: Tensor | None = None
        self._drawn_at: Tensor | None = None
        self._asked = 0
        self._n = 0
        # Whether products read entries, when P was last made: machines may differ in that.
        self._reads = False

    def outdated(self, covariance: Covariance, columns: int) -> bool:
        """Whether `make` would not use the pivots of the last time."""
        if self._pivots is None or len(covariance) != self._n:
            return True
        return self._choose(covariance, columns) != self._asked or self._moved(
            _position(covariance)
        )

    def make(self, covariance: Covariance, columns: int, hold: bool = False) -> Preconditioner:
        """P for this K̂, for solves of `columns` right-hand sides; with `hold` on the same pivots.

        Estimates of the likelihood differ from one set of pivots to another by more than an
        optimiser's steps do at the end.
        """
        n = len(covariance)
        if hold and self._pivots is not None and n == self._n:
            return self._factorise(covariance, self._pivots)
        if self.seen is not None and self._n not in (0, n):
            # The condition number grows with n, and iterations with its root.
            self.seen = self.seen[0], self.seen[1] * math.sqrt(n / self._n)
        if n != self._n:
            self._pivots = None
        self._n = n
        self._reads = bool(covariance.ranks.agree(torch.tensor(int(covariance.operator.kept))))
        rank = self._choose(covariance, columns)
        where = _position(covariance)
        if self._pivots is None or rank != self._asked or self._moved(where):
            self._pivots, self._drawn_at, self._asked = self._draw(covariance, rank), where, rank
            self._predecessors = None
        return self._factorise(covariance, self._pivots)

    def learn(self, preconditioner: Preconditioner, iterations: float) -> None:
        """Take note of what a solve with this preconditioner needed."""
        self.seen = preconditioner.rank, max(1.0, iterations)

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What `restore` needs to go on from here: plain JSON, and the pivots."""
        assert self._pivots is not None
        assert self._drawn_at is not None
        plain = {
            "seen": None if self.seen is None else list(self.seen),
            "asked": self._asked,
            "n": self._n,
            "drawn_at": self._drawn_at.tolist(),
            "reads": self._reads,
        }
        return plain, {"pivots": self._pivots}

    def restore(self, plain: dict[str, Any], pivots: Tensor | None) -> None:
        """Be as when `state` was called; without pivots, until that is called for another state."""
        seen = plain["seen"]
        self.seen = None if seen is None else (seen[0], seen[1])
        self._asked, self._n, self._reads = plain["asked"], plain["n"], plain.get("reads", False)
        self._drawn_at = torch.tensor(plain["drawn_at"], dtype=torch.float64)
        self._pivots = torch.zeros(0, dtype=torch.long) if pivots is None else pivots
        self._predecessors = None

    def _choose(self, covariance: Covariance, columns: int) -> int:
        n, d = covariance.operator.X.shape
        if self.rank is not None:
            return min(self.rank, n)
        if self._reads:
            d = 0  # products read what the first of them evaluates
        m, precise = self.neighbours, covariance.operator.dtype == torch.float64
        noise = float(covariance.noise.mean() / covariance.operator.diagonal().mean())
        best = choose_rank(
            n,
            d,
            columns,
            neighbours=m,
            noise=noise,
            seen=self.seen,
            float64=precise,
            budget=self.budget,
        )
        if self._pivots is None:
            return best
        now, then = (
            cost(k, n, d, columns, self.seen, neighbours=m, float64=precise, noise=noise)
            for k in (self._asked, best)
        )
        return best if then < WORTH * now else self._asked

    def _moved(self, where: Tensor) -> bool:
        assert self._drawn_at is not None
        return bool(((where - self._drawn_at).abs() > math.log(MOVED)).any())

    def _factorise(self, covariance: Covariance, pivots: Tensor) -> Preconditioner:
        if not self.neighbours:
            return PivotedCholesky(covariance, pivots)
        if self._predecessors is None:
            kernel = _at(covariance.operator.kernel, self._drawn_at)
            points = metric_features(kernel, covariance.operator.X)
            rng = np.random.default_rng(self.seed)
            self._predecessors = nearest_predecessors(
                points, self.neighbours, pivots, rng, covariance.ranks
            )
        return FullScale(covariance, pivots, self._predecessors)

    def _draw(self, covariance: Covariance, rank: int) -> Tensor:
        if self.pivoting == "greedy":
            return greedy_pivots(covariance.operator, rank)
        return random_pivots(covariance.operator, rank, np.random.default_rng(self.seed))


def _position(covariance: Covariance) -> Tensor:
    """Where the kernel is: its hyperparameters in logarithms. Scale does not change pivots."""
    shape = [h.raw.detach().reshape(-1) for h in _shapes(covariance.operator.kernel).values()]
    return torch.cat(shape) if shape else torch.zeros(0, dtype=torch.float64)


def _at(kernel: Kernel, where: Tensor | None) -> Kernel:
    """The kernel as it was at that position: neighbours are those of when pivots were drawn."""
    if where is None:
        return kernel
    values, start = {}, 0
    for name, h in _shapes(kernel).items():
        values[name] = where[start : start + h.raw.numel()].exp().reshape(h.raw.shape)
        start += h.raw.numel()
    return kernel.bind(values)


def _shapes(kernel: Kernel) -> dict[str, Hyperparameter]:
    found = kernel.hyperparameters()
    return {name: h for name, h in found.items() if "outputscale" not in name}
