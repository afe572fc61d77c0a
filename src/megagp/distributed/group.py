"""Ranks connected by torch.distributed."""

from __future__ import annotations

import atexit
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from megagp.distributed.ranks import Document, FirstRankError, RankError, Ranks
from megagp.distributed.speed import kind, speed

# Bytes of a rank's part from which on each rank sends its own to where it belongs: for 100 MB
# gloo's all_gather takes six times as long. Little is gathered at once, however many ranks.
BROADCAST_FROM = 1 << 20


class Group(Ranks):
    """The ranks of the default process group.

    traffic: bytes that this rank has put into sums, gathers and agreements so far.
    """

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.traffic: Counter[str] = Counter()
        self.weights = self._weights()

    def sum(self, T: Tensor) -> Tensor:
        T = T.contiguous()
        if T.numel():
            with self._explained("adding up a product"):
                dist.all_reduce(T)
            self.traffic["sum"] += T.nbytes
        return T

    def agree(self, T: Tensor) -> Tensor:
        T = T.clone(memory_format=torch.contiguous_format)
        if T.numel():
            with self._explained("hearing from rank 0"):
                dist.broadcast(T, 0)
            self.traffic["agree"] += T.nbytes
        return T

    def gather(self, part: Tensor, n: int) -> Tensor:
        shares = [self.rows(n, rank) for rank in range(self.size)]
        most = max(share.stop - share.start for share in shares)
        whole = part.new_empty(n, *part.shape[1:])
        if not whole.numel():
            return whole
        if most * whole[:1].nbytes < BROADCAST_FROM:
            # Of equal size, as all_gather wants them.
            padded = part.new_zeros(most, *part.shape[1:])
            padded[: len(part)] = part
            for share, found in zip(shares, self._all(padded), strict=True):
                whole[share] = found[: share.stop - share.start]
            return whole
        whole[shares[self.rank]] = part
        with self._explained("gathering rows"):
            sent = [
                dist.broadcast(whole[share], rank, async_op=True)
                for rank, share in enumerate(shares)
                if share.stop > share.start
            ]
            for work in sent:
                work.wait()
        self.traffic["gather"] += part.nbytes
        return whole

    def from_first(
        self, make: Callable[[], tuple[Mapping[str, Any], Mapping[str, Tensor]]]
    ) -> Document:
        header: dict[str, Any] = {}
        tensors: dict[str, Tensor] = {}
        problem: Exception | None = None
        if self.first:
            try:
                made = make()
                header, tensors = dict(made[0]), dict(made[1])
            except Exception as error:
                problem = error
        listed = [
            [name, str(T.dtype).removeprefix("torch."), list(T.shape)]
            for name, T in tensors.items()
        ]
        told = self._tell({"header": header, "tensors": listed, "error": _message(problem)})
        if problem is not None:
            raise problem
        if told["error"] is not None:
            raise FirstRankError(told["error"])
        for name, dtype, shape in told["tensors"]:
            blank = torch.zeros(shape, dtype=getattr(torch, dtype))
            tensors[name] = self.agree(tensors.get(name, blank))
        return told["header"], tensors

    def _tell(self, document: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps(document).encode()
        size = int(self.agree(torch.tensor(len(text))))
        room = torch.zeros(size, dtype=torch.uint8)
        if self.first:
            room = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        told: dict[str, Any] = json.loads(bytes(self.agree(room).numpy()))
        return told

    def _all(self, T: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(T) for _ in range(self.size)]
        with self._explained("gathering rows"):
            dist.all_gather(parts, T)
        self.traffic["gather"] += T.nbytes
        return parts

    def _weights(self) -> tuple[float, ...] | None:
        """Measured speeds where ranks are of different kinds.

        Equal ranks get equal shares and no measurement, which would differ from run to run and
        with it the last bits of all sums.
        """
        mine = torch.tensor([zlib.crc32(kind().encode())])
        if len({int(T) for T in self._all(mine)}) == 1:
            return None
        speeds = [float(T) for T in self._all(torch.tensor([speed()], dtype=torch.float64))]
        return tuple(round(s / max(speeds), 2) for s in speeds)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0][:200]
            raise RankError(
                f"rank {self.rank} of {self.size}: another rank stopped or can't be reached, "
                f"noticed while {what} ({reason}); look for the first error of the other ranks, "
                "then start the same command again: with a checkpoint it goes on where it was"
            ) from error


def connect(timeout: float) -> None:
    """Join the default process group that torchrun's environment describes."""
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    wait = timedelta(seconds=timeout)
    try:
        store, rank, size = next(rendezvous("env://", timeout=wait))
        dist.init_process_group(
            backend, store=_of_this_attempt(store), rank=rank, world_size=size, timeout=wait
        )
    except RuntimeError as error:
        raise RankError(
            f"rank {os.environ.get('RANK')}: the other ranks could not be reached within "
            f"{timeout:g} s ({str(error).strip().splitlines()[0][:200]}); check that all were "
            "started, and that MASTER_ADDR and MASTER_PORT can be reached from here"
        ) from error
    atexit.register(_leave)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if local > 1 and os.environ.get("OMP_NUM_THREADS") == "1":
        # What torchrun sets so that ranks don't crowd each other, however many cores there are.
        torch.set_num_threads(max(1, cores() // local))


def _leave() -> None:
    """End the group's threads before Python ends: they would take a finished process down."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _of_this_attempt(store: Any) -> Any:
    """The store without what an earlier attempt of torchrun on this machine has left in it.

    Addresses of ranks that are gone would be called, and never answer. On several machines every
    attempt has a store of its own, and the count of attempts is not the same on all.
    """
    if os.environ.get("GROUP_WORLD_SIZE", "1") != "1":
        return store
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"attempt {attempt}", store)  # type: ignore[attr-defined]


def cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _message(problem: Exception | None) -> str | None:
    return None if problem is None else f"rank 0: {problem or type(problem).__name__}"
