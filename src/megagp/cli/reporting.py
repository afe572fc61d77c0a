"""What a command says: results on stdout, everything else on stderr, errors in a line or two."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar

import typer

Command = TypeVar("Command", bound=Callable[..., None])
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def one_line_errors(command: Command) -> Command:
    """The command, with errors that a user can mend as one line and exit code 1."""

    @functools.wraps(command)
    def guarded(*args: Any, **options: Any) -> None:
        try:
            with _one_line_warnings():
                command(*args, **options)
        except KeyboardInterrupt:
            note("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        # Others are mistakes of ours: their traceback is what a report needs.
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            if not _said(error):
                note(f"error: {error or type(error).__name__}")
            raise typer.Exit(1) from None

    return guarded  # type: ignore[return-value]  # functools.wraps keeps the signature


def _said(error: Exception) -> bool:
    """Whether rank 0 has said it; where no command has asked for ranks, it can't have."""
    ranks = sys.modules.get("megagp.distributed")
    return ranks is not None and isinstance(error, ranks.FirstRankError)


def note(message: str) -> None:
    """One line on stderr."""
    print(f"megagp: {message}", file=sys.stderr, flush=True)


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.showwarning = _show
        yield


def _show(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    note(f"warning: {message}")
