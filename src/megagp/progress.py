"""Progress on stderr: phase, step, residual of the solve, time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text


class Progress:
    """Shows how far a fit has come; says nothing with verbose = 0.

    plan: (phase, steps, cost of a step in any unit) for each phase, in order. The time left
    is the cost of what is left, at the speed of the present phase once it has done a step,
    and at that of the whole before; it counts down while a step lasts.
    On a terminal one line is kept up to date; elsewhere each phase ends in a line.
    """

    def __init__(self, verbose: int, stream: TextIO | None = None) -> None:
        self.console = Console(file=stream or sys.stderr, highlight=False)
        self.verbose = verbose
        self.plan: list[tuple[str, int, float]] = []
        self._live: Live | None = None
        self._begin()

    def _begin(self) -> None:
        self._at = -1
        self._done_steps = 0
        self._done_cost = 0.0
        self._loss = float("nan")
        self._residual = (0, float("nan"))
        self._started = self._phase_started = self._step_ended = time.perf_counter()

    def start(self, plan: Sequence[tuple[str, int, float]]) -> None:
        self.plan = list(plan)
        self._begin()
        if self.verbose and self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=8, transient=True)
            self._live.start()

    def say(self, line: str) -> None:
        """A line that stays."""
        if self.verbose:
            self.console.print(f"megagp: {line}", soft_wrap=True)

    def phase(self, name: str) -> None:
        """A phase of the plan begins; the one before it is done."""
        self._close_phase()
        self._at = next(
            (i for i, entry in enumerate(self.plan) if i > self._at and entry[0] == name), self._at
        )
        self._done_steps = 0
        self._phase_started = self._step_ended = time.perf_counter()
        self._residual = (0, float("nan"))
        self._show()

    def step(self, step: int, loss: float) -> None:
        self._done_steps, self._loss = step, loss
        self._step_ended = time.perf_counter()
        self._show()

    def iteration(self, iteration: int, residual: float) -> None:
        self._residual = (iteration, residual)
        self._show()

    def finish(self) -> None:
        self._close_phase()
        self._at = -1
        if self._live is not None:
            self._live.stop()
            self._live = None

    def seconds_left(self) -> float | None:
        """Estimate of the time to the end of the plan; None before anything is known."""
        if not 0 <= self._at < len(self.plan):
            return None
        _, steps, cost = self.plan[self._at]
        done = min(self._done_steps, steps)
        if done:
            speed = (self._step_ended - self._phase_started) / (done * cost)
        elif self._done_cost:
            speed = (self._phase_started - self._started) / self._done_cost
        else:
            return None
        left = (steps - done) * cost + sum(s * c for _, s, c in self.plan[self._at + 1 :])
        return max(0.0, left * speed - (time.perf_counter() - self._step_ended))

    def _close_phase(self) -> None:
        if not 0 <= self._at < len(self.plan):
            return
        name, steps, cost = self.plan[self._at]
        self._done_cost += steps * cost
        if self.verbose:
            seconds = time.perf_counter() - self._phase_started
            loss = "" if self._loss != self._loss else f", loss {self._loss:.4f} per point"
            self.console.print(f"megagp: {name}: {seconds:.1f} s{loss}")

    def _show(self) -> None:
        if self._live is None or self._at < 0:
            return
        name, steps, _ = self.plan[self._at]
        parts = [f"megagp: {name}", f"step {min(self._done_steps + 1, steps)}/{steps}"]
        if self._loss == self._loss:
            parts.append(f"loss {self._loss:.4f}")
        if self._residual[0]:
            parts.append(f"CG {self._residual[0]}: residual {self._residual[1]:.2g}")
        left = self.seconds_left()
        parts.append("time left: measuring" if left is None else f"time left {clock(left)}")
        self._live.update(Text(" | ".join(parts)))


def clock(seconds: float) -> str:
    """Seconds as people say them: 42 s, 3:05 min, 2:10 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
