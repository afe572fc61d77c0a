"""When entries of K are kept between products, and how many bytes of them."""

from __future__ import annotations

import torch

from megagp.memory import installed

# From so many columns of X on, evaluating an entry takes several times as long as reading it
# (`make bench-engine`); with few, entries are evaluated about as fast as they are read.
KEEP_FROM = 64
# Of the memory of the machine.
KEEP_SHARE = 0.25


def keeping_budget(columns: int, device: torch.device | str = "cpu") -> int:
    """Bytes for entries of k(X, X), X with so many columns, on this device: 0 but on CPUs."""
    if columns < KEEP_FROM or torch.device(device).type != "cpu":
        return 0
    return int(KEEP_SHARE * installed())
