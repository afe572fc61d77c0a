"""A fit that can be taken up again: what its evaluations found, and how far a solve had come.

Training is a deterministic program around costly evaluations of the likelihood. The journal keeps
what they returned. Run again, the program reads them from there, one after the other, until the
journal ends, and goes on by itself: no optimiser needs to know. A solve that takes long is kept
apart, with all vectors of its last iteration.

Nothing in it depends on the number of ranks. Rank 0 reads and writes; the others are told.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from megagp.distributed import ALONE, Ranks
from megagp.storage import PathLike, StorageError, read, require, write

State = dict[str, Tensor]
JOURNAL, PREVIOUS = "journal.mgp", "journal.previous.mgp"
# Seconds between two copies of a solve in progress.
EVERY = 180.0


class Checkpoint:
    """Files in `folder` that take the fit with these facts up where it was.

    facts: plain JSON, all that a result depends on but the seed; a folder of other facts is
    refused. seed: for a fit that starts; one that was begun keeps its own, unless `seeded`.
    every: seconds between copies of a solve in progress.
    """

    def __init__(
        self,
        folder: PathLike,
        facts: Mapping[str, Any],
        seed: int,
        *,
        seeded: bool = True,
        ranks: Ranks = ALONE,
        every: float = EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.ranks, self.every, self._clock = Path(folder), ranks, every, clock
        self._facts = {**facts, "seed": seed} if seeded else dict(facts)
        header, tensors = ranks.from_first(self._open)
        self.seed = int(header.get("seed", seed))
        self._entries: list[dict[str, Any]] = header.get("entries", [])
        self._tensors = tensors
        # Evaluations after the last entry that came to nothing, and how many such are behind.
        self._failures: list[dict[str, Any]] = header.get("failures", [])
        self._at = self._behind = 0

    @property
    def steps(self) -> int:
        """Evaluations that need not be made again."""
        return len(self._entries)

    def recall(self, theta: NDArray[np.float64]) -> tuple[dict[str, Any], State] | None:
        """What the next evaluation found, if it was made before, at this θ."""
        if self._at == len(self._entries):
            return None
        entry = self._entries[self._at]
        if not _same(entry["theta"], theta):
            self._leave()
            return None
        self._at += 1
        self._behind = 0
        return entry, self._state_of(self._at - 1)

    def failed(self, theta: NDArray[np.float64]) -> dict[str, Any] | None:
        """What `fail` was told of the next evaluation, if that was made before, at this θ."""
        known = self._known_failures()[self._behind :]
        if not known or not _same(known[0]["theta"], theta):
            return None
        self._behind += 1
        return known[0]

    def fail(self, failure: dict[str, Any]) -> None:
        """Keep that an evaluation came to nothing: `theta`, and other JSON."""
        self._leave()
        self._failures.append(failure)
        self._behind = len(self._failures)
        self._save()

    def record(self, entry: dict[str, Any], state: State) -> None:
        """Keep what an evaluation found: `loss`, `theta` and other JSON, and its tensors."""
        self._leave()
        index = len(self._entries)
        self._entries.append({**entry, "failures": self._failures})
        self._at, self._behind, self._failures = index + 1, 0, []
        self._tensors |= {f"{index}.{name}": T for name, T in state.items()}
        alike = [i for i, e in enumerate(self._entries) if e["n"] == entry["n"]]
        best = min(alike, key=lambda i: self._entries[i]["loss"])
        # Training goes back to the best at the end of a phase, or on from the last.
        keep = (f"{index}.", f"{best}.")
        self._tensors = {name: T for name, T in self._tensors.items() if name.startswith(keep)}
        self._save()

    def _known_failures(self) -> list[dict[str, Any]]:
        """Those between the last entry that was recalled and the next."""
        if self._at == len(self._entries):
            return self._failures
        found: list[dict[str, Any]] = self._entries[self._at].get("failures", [])
        return found

    def _leave(self) -> None:
        """Another machine or version took another way from here; what follows is of no use."""
        self._failures = self._known_failures()[: self._behind]
        del self._entries[self._at :]

    def _save(self) -> None:
        if self.ranks.first:
            newest = self.folder / JOURNAL
            if newest.exists():
                newest.replace(self.folder / PREVIOUS)
            journal = {"entries": self._entries, "failures": self._failures}
            self._write(newest, journal, self._tensors)

    def solving(
        self, purpose: str, theta: NDArray[np.float64], detail: str = ""
    ) -> SolveInProgress:
        """Where the solve for this purpose at this θ keeps its state: a file for each purpose."""
        name = f"{detail} after {self._at} evaluations, at {theta.tolist()}"
        return SolveInProgress(self, self.folder / f"solve.{purpose}.mgp", name)

    def _open(self) -> tuple[dict[str, Any], State]:
        """The newest journal that is sound, on rank 0; an empty one for a new folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        problems = []
        for path in (self.folder / JOURNAL, self.folder / PREVIOUS):
            if not path.exists():
                continue
            try:
                return self._checked(path)
            except StorageError as error:
                problems.append(str(error))
        if problems:
            raise StorageError(f"{problems[0]}; remove {self.folder} to start again")
        return {}, {}

    def _checked(self, path: Path) -> tuple[dict[str, Any], State]:
        try:
            header, tensors = read(path)
            facts = require(header, "facts", dict)
            require(header, "entries", list)
        except StorageError as error:
            if path.name == JOURNAL and (self.folder / PREVIOUS).exists():
                warnings.warn(f"{error}; going on from the one before", UserWarning, stacklevel=5)
            raise
        if facts != self._facts:
            names = {
                name
                for name in facts | self._facts
                if facts.get(name, ...) != self._facts.get(name, ...)
            }
            raise ValueError(
                f"{self.folder}: expected a checkpoint of this fit, got one with other "
                f"{', '.join(sorted(names))}; choose another folder, or remove this one"
            )
        return header, tensors

    def _state_of(self, index: int) -> State:
        prefix = f"{index}."
        return {
            name.removeprefix(prefix): T
            for name, T in self._tensors.items()
            if name.startswith(prefix)
        }

    def _write(self, path: Path, header: Mapping[str, Any], tensors: State) -> None:
        write(path, {"facts": self._facts, "seed": self.seed, **header}, tensors)


class SolveInProgress:
    """The state of one solve, copied to a file now and then."""

    def __init__(self, checkpoint: Checkpoint, path: Path, name: str) -> None:
        self._checkpoint, self._path, self._name = checkpoint, path, name
        self._due = checkpoint._clock() + checkpoint.every

    def load(self) -> State | None:
        """The state that was kept of this very solve, if any; the same on every rank."""
        _, tensors = self._checkpoint.ranks.from_first(self._read)
        return tensors or None

    def offer(self, state: Callable[[], State]) -> None:
        """Keep the state if it is time to; to be called at every iteration."""
        if self._checkpoint.ranks.first and self._checkpoint._clock() >= self._due:
            self.keep(state())

    def keep(self, state: State) -> None:
        """Keep the state now."""
        if self._checkpoint.ranks.first:
            self._checkpoint._write(self._path, {"solve": self._name}, state)
            self._due = self._checkpoint._clock() + self._checkpoint.every

    def _read(self) -> tuple[dict[str, Any], State]:
        if not self._path.exists():
            return {}, {}
        try:
            header, tensors = read(self._path)
        except StorageError as error:
            warnings.warn(f"{error}; the solve starts again", UserWarning, stacklevel=4)
            return {}, {}
        same = header.get("facts") == self._checkpoint._facts and header.get("solve") == self._name
        return {}, tensors if same else {}


def _same(before: list[float], theta: NDArray[np.float64]) -> bool:
    at = np.array(before)
    return at.shape == theta.shape and np.allclose(at, theta, rtol=1e-6, atol=1e-9)


def digest(T: Tensor) -> str:
    """A fingerprint of a tensor: its type, shape and bytes."""
    facts = f"{T.dtype} {tuple(T.shape)} ".encode()
    return hashlib.sha256(facts + T.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
