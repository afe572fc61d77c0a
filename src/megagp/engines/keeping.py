"""When entries of K are kept between products, and how many bytes of them."""

from __future__ import annotations

from torch import Tensor

from megagp.memory import installed

# From so many columns of X on, evaluating an entry takes several times as long as reading it
# (`make bench-engine`); with few, entries are evaluated about as fast as they are read.
KEEP_FROM = 64
# Of the memory of the machine.
KEEP_SHARE = 0.25


def keeping_budget(X: Tensor) -> int:
    """Bytes for entries of k(X, X): 0 where it does not pay, or where memory is not the CPU's."""
    if X.device.type != "cpu" or X.shape[1] < KEEP_FROM:
        return 0
    return int(KEEP_SHARE * installed())
