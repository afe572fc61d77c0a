"""What a program may ask of the ranks it runs on; here for one process alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor

from megagp.engines import Share

Document: TypeAlias = tuple[dict[str, Any], dict[str, Tensor]]  # JSON and tensors


class RankError(ConnectionError):
    """Another rank stopped, or can't be reached."""


class FirstRankError(ValueError):
    """What rank 0 alone tried has failed; it has said why."""


class Ranks:
    """One process alone, to which every verb is trivial; `Group` has the same verbs for several.

    rank: this one, of `size`. weights: the relative speeds of all, None if equal.
    """

    rank: int = 0
    size: int = 1
    weights: tuple[float, ...] | None = None

    @property
    def first(self) -> bool:
        """Whether this is the rank that prints and writes."""
        return self.rank == 0

    @property
    def share(self) -> Share:
        """The tile pairs of this rank."""
        return Share(self.rank, self.size, self.weights)

    def rows(self, n: int, rank: int | None = None) -> slice:
        """The part of n rows that this rank (or that one) owns; it may be empty."""
        share = Share(self.rank if rank is None else rank, self.size, self.weights)
        start, stop = share.interval
        return slice(start * n >> 32, stop * n >> 32)

    def sum(self, T: Tensor) -> Tensor:
        """The sum over ranks, the same bits on each; T may be overwritten."""
        return T

    def agree(self, T: Tensor) -> Tensor:
        """What rank 0 has: for all that a program decides on."""
        return T

    def gather(self, part: Tensor, n: int) -> Tensor:
        """All n rows from the parts that ranks own."""
        return part

    def from_first(
        self, make: Callable[[], tuple[Mapping[str, Any], Mapping[str, Tensor]]]
    ) -> Document:
        """What `make` returns on rank 0, which alone calls it; its errors are raised on all."""
        header, tensors = make()
        return dict(header), dict(tensors)


ALONE = Ranks()
