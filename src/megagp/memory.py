"""The memory that a piece of work takes, and keeps."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import torch

# Between looks at the memory in use, in seconds.
INTERVAL = 0.01
PAGES = Path("/proc/self/statm")
# Control groups of Linux: which are this process's, and what they allow (versions 2 and 1).
GROUPS, LIMITS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
# Just below the largest block from which glibc's malloc learns.
KEPT = (32 << 20) - (1 << 13)


def keep_freed() -> None:
    """Have matrices of a few megabytes that are freed kept for the next ones, by this process.

    For loops that make and free many of them: glibc returns such blocks to the system, which clears
    every page before it hands it out again, until a larger one has been freed (mallopt(3),
    M_MMAP_THRESHOLD). Elsewhere it does nothing.
    """
    torch.empty(KEPT, dtype=torch.uint8, device="cpu")


def release_freed() -> None:
    """Give memory that is free, but lies between blocks in use, back to the system.

    A solve makes and frees vectors of several sizes at every iteration, and what glibc keeps of
    them adds up to hundreds of megabytes (malloc_trim(3)). Elsewhere it does nothing.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def installed() -> int:
    """Bytes of memory that this machine, or its container, has; 0 where the system does not say."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0
    return min([found, *_limits()])


def _limits() -> Iterator[int]:
    """What the control groups that this process is in, and those above them, allow."""
    try:
        lines = GROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:  # "0::/a/b", or "5:memory:/a/b" in version 1
        _, kinds, path = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        root, name = (
            (LIMITS / "memory", "memory.limit_in_bytes") if kinds else (LIMITS, "memory.max")
        )
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):  # absent, or "max"
                yield int((folder / name).read_text())
            if folder == root:
                break


class MemoryWatch:
    """Watches the memory of this process from a thread of its own.

    most: bytes held beyond those at the start; None where the system does not say.
    """

    def __enter__(self) -> MemoryWatch:
        self.most: int | None = None
        self._start = _resident()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        if self._start is None:
            return
        self.most = 0
        while True:
            done = self._done.wait(INTERVAL)
            self.most = max(self.most, (_resident() or 0) - self._start)
            if done:
                return


def _resident() -> int | None:
    """Bytes of memory in use; None where the system has no /proc."""
    try:
        return int(PAGES.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
