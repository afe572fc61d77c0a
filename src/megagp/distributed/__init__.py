"""Several processes as one: the same program on every rank, the tile pairs shared out.

ranks   the contract, and one process alone
data    the same data on all ranks, and rows shared out
group   ranks that torch.distributed connects: the only file that talks to it
speed   how fast this rank is, where ranks differ

Every rank has X and all O(n) vectors, and owns a share of the tile pairs and of the rows of the
preconditioner. One sum of n x t over the ranks joins a product. What a program decides on
(residuals, losses, pivots) is what rank 0 says, so that ranks never part.
"""

from __future__ import annotations

import os
import sys

from megagp.distributed.data import broadcast, check_same, spread
from megagp.distributed.ranks import ALONE, FirstRankError, RankError, Ranks

__all__ = [
    "ALONE",
    "FirstRankError",
    "RankError",
    "Ranks",
    "broadcast",
    "check_same",
    "current",
    "is_first",
    "join",
    "spread",
]

# Seconds that a rank waits for the others. Shares take about equally long, so this is no bound
# on the length of a product, only on how unequal they may be.
TIMEOUT = 600.0


def current() -> Ranks:
    """The ranks that this process works with: those of torchrun or of the script, or itself alone.

    All ranks must call this at the same point of the program.
    """
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        from megagp.distributed.group import Group  # not imported by a process alone

        return Group() if dist.get_world_size() > 1 else ALONE
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
        return join()
    return ALONE


def is_first() -> bool:
    """Whether this process is rank 0, which alone prints and writes; any rank may ask any time."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return bool(dist.get_rank() == 0)
    return int(os.environ.get("RANK", "0")) == 0


def join(timeout: float = TIMEOUT) -> Ranks:
    """Connect the processes that torchrun started: gloo for CPU tensors, NCCL for CUDA ones.

    timeout: seconds after which a rank that waits for another gives up with RankError.
    torchrun allows each rank one thread; if there are more cores than ranks, each gets its part.
    """
    if not 0 < timeout < float("inf"):
        raise ValueError(f"timeout: expected a positive number of seconds, got {timeout}")
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return ALONE
    from megagp.distributed.group import Group, connect  # not imported by a process alone

    connect(timeout)
    return Group()
