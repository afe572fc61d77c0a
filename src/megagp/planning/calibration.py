"""How fast this machine is, from a second or two of measuring each part of a fit."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from megagp.covariance import Covariance
from megagp.kernels import Matern32
from megagp.likelihood import dense
from megagp.neighbours import metric_features
from megagp.operator import KernelOperator
from megagp.planning.rates import Rates
from megagp.preconditioners import (
    FullScale,
    PivotedCholesky,
    Predecessors,
    nearest_predecessors,
    random_pivots,
)
from megagp.training import Solving

# Points that products are timed on: enough to keep all threads busy, few enough to be quick.
POINTS = 16_384
# Each part is repeated until it took this long, at least REPEATS times; the best counts.
SECONDS, REPEATS = 0.05, 3
# Columns at which a product is timed, beside those of training.
FEW = 2
# Rank and neighbours that the preconditioner is timed at, and points of the dense likelihood.
RANK, NEIGHBOURS = 400, 24
DENSE = 1000
# Ranks on other machines are reached over a network of 10 Gbit/s, if nothing else is said.
LINK = 1.25e9


def calibrate(d: int, *, columns: int = 12, solving: Solving | None = None) -> Rates:
    """Rates of this machine for points in d dimensions and `columns` right-hand sides."""
    solving = solving or Solving()
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.standard_normal((POINTS, d)))
    V = torch.from_numpy(rng.standard_normal((POINTS, columns)))
    kernel = Matern32(np.full(d, 2.0 * d**0.5))
    operator = KernelOperator(X, kernel, engine=solving.engine, dtype=solving.dtype)
    precise = operator.astype("float64")
    noise = torch.full((POINTS,), 0.1, dtype=torch.float64)
    covariance = Covariance(operator, noise)
    pairs = POINTS * (POINTS + 1) / 2
    few = min(FEW, columns)
    wide, narrow = _best(lambda: operator.matmul(V)), _best(lambda: operator.matmul(V[:, :few]))
    # Evaluating k costs more than a few columns do: a steeper slope is other work on the machine.
    column = min(max(0.0, wide - narrow) / max(1, columns - few), narrow / (2 * few))
    pivots = random_pivots(operator, RANK, np.random.default_rng(0))
    features = metric_features(kernel, X)

    def search() -> Predecessors:
        return nearest_predecessors(features, NEIGHBOURS, pivots, np.random.default_rng(0))

    found = search()
    preconditioner = FullScale(covariance, pivots, found)
    squared = POINTS * len(pivots) ** 2
    plain = _best(lambda: PivotedCholesky(covariance, pivots), 2)
    full = _best(lambda: FullScale(covariance, pivots, found), 2)
    return Rates(
        product=(narrow - few * column) / pairs,
        product_column=column / pairs,
        precise=_best(lambda: precise.matmul(V[:, :few])) / pairs,
        gradient=_best(lambda: operator.gradient(V, V)) / pairs,
        draw=_best(lambda: random_pivots(operator, RANK, np.random.default_rng(0)), 1) / squared,
        setup=plain / squared,
        gather=max(0.0, full - plain) / (POINTS * len(pivots) * NEIGHBOURS**2),
        search=_best(search, 1) / POINTS**2,
        apply=_best(lambda: preconditioner.solve(V)) / (POINTS * len(pivots) * columns),
        dense=_dense(X[:DENSE], V[:DENSE], kernel) / DENSE**3,
        link=LINK,
        source=f"measured on this machine, {torch.get_num_threads()} threads",
    )


def _dense(X: torch.Tensor, V: torch.Tensor, kernel: Matern32) -> float:
    covariance = Covariance(KernelOperator(X, kernel), torch.full_like(X[:, 0], 0.1))
    return _best(lambda: dense(covariance, V[:, :1], torch.ones_like(X[:, :1])))


def _best(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """The least time of several: what others do on the machine only adds."""
    times: list[float] = []
    while len(times) < repeats or sum(times) < SECONDS:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
