"""How large the preconditioner should be: its cost against that of the iterations it saves."""

from __future__ import annotations

# Iterations are taken to fall as rank^-DECAY; `make bench-solvers` prints them by rank.
DECAY = 0.9
# Before any solve was seen: iterations to 0.01 at this rank.
TYPICAL_RANK, TYPICAL_ITERATIONS = 1000, 20.0
# Rough costs in float32 multiply-adds of the native product: evaluating k(x, z) takes about as
# many as 20 dimensions do.
EVALUATE = 20
SETUP = 9
SOLVE = 20  # per entry of L and right-hand side: two skinny float64 products, bound by memory
CHOICES = (50, 100, 200, 300, 400, 500, 700, 1000, 1400, 2000, 2800, 4000)


def choose_rank(
    n: int,
    d: int,
    columns: int,
    *,
    seen: tuple[int, float] | None = None,
    solves: int = 1,
    budget: int = 1 << 29,
) -> int:
    """The rank with the least total cost for `solves` solves of `columns` right-hand sides.

    seen: (rank, iterations) of an earlier solve like these. budget: bytes for L (float32).
    """
    allowed = [k for k in CHOICES if k <= n // 4 and 4 * n * k <= budget]
    return min(allowed, key=lambda k: cost(k, n, d, columns, seen, solves), default=0)


def cost(
    k: int,
    n: int,
    d: int,
    columns: int,
    seen: tuple[int, float] | None = None,
    solves: int = 1,
) -> float:
    """Multiply-adds of one factorisation and the solves with it at rank k."""
    rank, iterations = seen or (TYPICAL_RANK, TYPICAL_ITERATIONS)
    shrunk: float = (max(rank, 20) / max(k, 20)) ** DECAY
    expected = max(3.0, iterations * shrunk)
    product = n * n / 2 * (d + EVALUATE + 4 * columns)
    return SETUP * n * k**2 + solves * expected * (product + SOLVE * n * k * columns)
