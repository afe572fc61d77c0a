"""What a fit consists of, leg by leg.

How many iterations solves take is known only afterwards: here they are what TYPICAL says, which
`benchmarks/forecast.py` prints beside what was needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from megagp.inputs import as_dtype
from megagp.preconditioners.rank import DECAY, DECAY_WITH_NEIGHBOURS, choose_rank
from megagp.training import Recipe, Solving


@dataclass(frozen=True)
class Typical:
    """What solves and searches needed on the robot arm (6 joints).

    rank, neighbours, iterations: a solve with such a preconditioner on `points` points took so
    many; more as n^growth, fewer as a power of the rank (preconditioners/rank.py) and as the
    root of the neighbours. alone: times as many without neighbours.
    width: of the columns, the share that is still iterated on average.
    last: iterations of the solve for predictions, which starts from what training left.
    searched, finetuned, dense: evaluations per step that a search is allowed: on a subset,
    on everything, and by the dense way.
    """

    rank: int = 400
    neighbours: int = 24
    iterations: float = 11.5
    points: int = 50_000
    growth: float = 0.1
    alone: float = 4.0
    width: float = 0.7
    last: float = 0.5
    searched: float = 0.6
    finetuned: float = 1.0
    dense: float = 0.3


TYPICAL = Typical()


@dataclass(frozen=True)
class Leg:
    """One leg of a fit: `evaluations` solves of `columns` right-hand sides on `points` points.

    iterations: per evaluation. rank, neighbours: of the preconditioner; rank 0 where it is dense.
    gradients: per evaluation. precise: products in float64 per evaluation. kept: bytes of
    entries that products but the first of an evaluation read.
    """

    name: str
    points: int
    columns: int
    evaluations: float
    iterations: float
    rank: int
    width: float
    gradients: int
    precise: int
    neighbours: int = 0
    kept: float = 0.0

    @property
    def dense(self) -> bool:
        return self.rank == 0

    @property
    def pairs(self) -> float:
        """Kernel evaluations of one pass over the symmetric matrix."""
        return self.points * (self.points + 1) / 2

    @property
    def products(self) -> float:
        """Products in all: an iteration each, and one for the residual to start from."""
        return 0.0 if self.dense else self.evaluations * (self.iterations + 1)

    @property
    def evaluated(self) -> float:
        """Those of them that evaluate entries."""
        return self.evaluations if self.kept and not self.dense else self.products

    @property
    def kernel_evaluations(self) -> float:
        if self.dense:
            return self.evaluations * 2 * self.pairs
        passes = self.evaluated + self.evaluations * (self.gradients + self.precise)
        return passes * self.pairs + self.evaluations * self.points * self.rank


def workload(
    n: int,
    d: int,
    *,
    recipe: Recipe | None = None,
    solving: Solving | None = None,
    outputs: int = 1,
    basis: int = 1,
    cache_budget: int = 0,
    typical: Typical = TYPICAL,
) -> list[Leg]:
    """The legs of a fit of n points in d dimensions: training, and the solve for predictions.

    outputs: columns of y. basis: columns of the mean's basis. cache_budget: bytes for entries of K
    that are kept between products (engines/keeping.py).
    """
    recipe, solving = recipe or Recipe(), solving or Solving()
    known = outputs + basis
    legs = []
    for phase in recipe.phases(n):
        share = typical.searched
        if phase.optimiser == "adam":
            share = 1.0
        elif phase.size <= solving.dense_below:
            share = typical.dense
        elif phase.name.startswith("finetune"):
            share = typical.finetuned
        evaluations = share * phase.steps + 1
        columns = known + solving.probes_for(phase.size)
        legs.append(
            _leg(phase.name, phase.size, d, columns, evaluations, solving, typical, cache_budget)
        )
    last = _leg("precompute", n, d, known, 1.0, solving, typical, cache_budget, training=False)
    return [*legs, last]


def _leg(
    name: str,
    points: int,
    d: int,
    columns: int,
    evaluations: float,
    solving: Solving,
    typical: Typical,
    cache_budget: int,
    *,
    training: bool = True,
) -> Leg:
    if points <= solving.dense_below:
        return Leg(name, points, columns, evaluations, 0.0, 0, 1.0, 0, 0)
    m = solving.neighbours_for(points)
    grown = typical.iterations * (points / typical.points) ** typical.growth
    grown *= math.sqrt(typical.neighbours / m) if m else typical.alone
    rank = solving.rank
    half = as_dtype(solving.dtype).itemsize * points**2 / 2
    kept = half if half <= cache_budget else 0.0
    if rank is None:
        seen, read = (typical.rank, grown), 0 if kept else d
        rank = choose_rank(points, read, columns, neighbours=m, seen=seen, budget=solving.budget)
    decay = DECAY_WITH_NEIGHBOURS if m else DECAY
    iterations = max(3.0, grown * (typical.rank / max(rank, 20)) ** decay)
    if not training:
        iterations = typical.last
    iterations = min(iterations, solving.max_iter)
    width = typical.width if training else 1.0
    return Leg(
        name,
        points,
        columns,
        evaluations,
        iterations,
        max(1, rank),
        width,
        gradients=1 if training else 0,
        precise=0 if training else 1,
        neighbours=m,
        kept=kept,
    )
