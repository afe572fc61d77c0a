"""How large the preconditioner should be: its cost against that of the iterations it saves."""

from __future__ import annotations

# Iterations are taken to fall as rank^-DECAY, slower if neighbours see to what the rank leaves;
# `make bench-solvers` prints them by rank.
DECAY, DECAY_WITH_NEIGHBOURS = 0.9, 0.6
# Before any solve was seen: iterations to 0.01 at these ranks, where noise is a tenth of k(x, x).
# They grow as noise^-NOISE, much less if neighbours see to what the rank leaves.
TYPICAL, TYPICAL_WITH_NEIGHBOURS = (1000, 20.0), (300, 10.0)
USUAL_NOISE, NOISE, NOISE_WITH_NEIGHBOURS = 0.1, 0.3, 0.1
# Rough costs in float32 multiply-adds of the native product: evaluating k(x, z) takes about as
# many as 20 dimensions do.
EVALUATE = 20
FLOAT64 = 2.2  # a product with entries in float64, in units of one in float32
SETUP = 6
GATHER = 23  # per point, squared number of neighbours and rank: gathered rows, small products
SOLVE = 20  # per entry of L and right-hand side: two skinny float64 products, bound by memory
CHOICES = (50, 100, 200, 300, 400, 500, 700, 1000, 1400, 2000, 2800, 4000)


def choose_rank(
    n: int,
    d: int,
    columns: int,
    *,
    neighbours: int = 0,
    noise: float = USUAL_NOISE,
    seen: tuple[int, float] | None = None,
    solves: int = 1,
    float64: bool = False,
    budget: int = 1 << 29,
) -> int:
    """The rank with the least total cost for `solves` solves of `columns` right-hand sides.

    noise: as a share of k(x, x). seen: (rank, iterations) of an earlier solve like these, which
    tell more than noise does. float64: entries of K are evaluated so. budget: bytes for L, float32.
    """
    allowed = [k for k in CHOICES if k <= n // 4 and 4 * n * k <= budget]

    def total(k: int) -> float:
        return cost(k, n, d, columns, seen, solves, neighbours, float64, noise)

    return min(allowed, key=total, default=0)


def cost(
    k: int,
    n: int,
    d: int,
    columns: int,
    seen: tuple[int, float] | None = None,
    solves: int = 1,
    neighbours: int = 0,
    float64: bool = False,
    noise: float = USUAL_NOISE,
) -> float:
    """Multiply-adds of one factorisation and the solves with it at rank k."""
    rank, iterations = seen or typical(neighbours, noise)
    decay = DECAY_WITH_NEIGHBOURS if neighbours else DECAY
    shrunk: float = (max(rank, 20) / max(k, 20)) ** decay
    expected = max(3.0, iterations * shrunk)
    product = n * n / 2 * (d + EVALUATE + 4 * columns) * (FLOAT64 if float64 else 1.0)
    setup = n * k * (SETUP * k + GATHER * neighbours**2)
    return setup + solves * expected * (product + SOLVE * n * k * columns)


def typical(neighbours: int, noise: float) -> tuple[int, float]:
    """A rank, and the iterations to expect at it before a solve was seen."""
    rank, iterations = TYPICAL_WITH_NEIGHBOURS if neighbours else TYPICAL
    power = NOISE_WITH_NEIGHBOURS if neighbours else NOISE
    less: float = (USUAL_NOISE / max(noise, 1e-12)) ** power
    return rank, iterations * less
