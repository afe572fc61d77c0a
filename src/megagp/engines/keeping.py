"""When entries of K are kept between products, and how many bytes of them."""

from __future__ import annotations

from megagp.memory import installed

# From so many features on, a product that evaluates entries takes two to four times as long as one
# that reads them (`benchmarks/engine.py --kept`); with few, they are evaluated about as fast.
KEEP_FROM = 64
# Of the memory of the machine.
KEEP_SHARE = 0.25


def keeping_budget(features: int) -> int:
    """Bytes for entries of K between points with so many features, on a CPU."""
    return int(KEEP_SHARE * installed()) if features >= KEEP_FROM else 0
