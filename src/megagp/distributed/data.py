"""The same data on every rank, and work on rows shared out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megagp.distributed.ranks import Ranks


def broadcast(ranks: Ranks, *arrays: NDArray[Any] | None) -> tuple[NDArray[Any], ...]:
    """The arrays of rank 0 on every rank; the others may pass None for each."""

    def own() -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {}, {str(i): torch.from_numpy(np.array(array)) for i, array in enumerate(arrays)}

    _, tensors = ranks.from_first(own)
    return tuple(tensors[str(i)].numpy() for i in range(len(arrays)))


def check_same(ranks: Ranks, **tensors: Tensor) -> None:
    """Raise on every rank if one has other data than rank 0."""
    if ranks.size == 1:
        return
    mine = torch.tensor([list(_digest(T)) for T in tensors.values()])
    differs = (ranks.agree(mine) != mine).any(dim=1).long()
    counts = ranks.sum(differs)
    for name, count in zip(tensors, counts.tolist(), strict=True):
        if count:
            raise ValueError(
                f"{name}: expected the same data on all {ranks.size} ranks, got other data than "
                f"rank 0's on {count} of them; read the same file on each, or pass what "
                "megagp.distributed.broadcast returns"
            )


def spread(work: Callable[[Tensor], Tensor], X: Tensor, ranks: Ranks) -> Tensor:
    """work(X) for a function of each row on its own, computed by all ranks together."""
    own = X[ranks.rows(len(X))]
    # One row shows a rank without any what its part of the result looks like.
    part = work(own) if len(own) else work(X[:1])[:0]
    return ranks.gather(part, len(X))


def _digest(T: Tensor) -> bytes:
    facts = f"{tuple(T.shape)} {T.dtype}".encode()
    return hashlib.sha256(facts + T.contiguous().numpy().tobytes()).digest()
