"""What a fit did, as plain numbers."""

from __future__ import annotations

import math
from typing import Any

from megagp.solvers import SolveResult
from megagp.training import Objective, Phase


def diagnostics(
    phases: list[Phase],
    objective: Objective,
    result: SolveResult,
    seconds: float,
    kernel_evaluations: float,
) -> dict[str, Any]:
    """What a fit did, in plain numbers that JSON can hold.

    result, seconds, kernel_evaluations: of the last solve.
    """
    operator = objective.operator
    found = [
        {
            "phase": p.name,
            "points": p.size,
            # Planned: a leg ends before that when nothing is gained. `evaluations` were made.
            "steps_at_most": p.steps + p.further,
            "seconds": p.seconds,
            # Of a phase in which no step was worth taking, there is none.
            "loss": p.loss if math.isfinite(p.loss) else None,
            "evaluations": p.tally.evaluations,
            "iterations": p.tally.iterations,
            "kernel_evaluations": p.tally.kernel_evaluations,
            "unconverged": p.tally.unconverged,
            "rank": p.tally.ranks[-1] if p.tally.ranks else 0,
        }
        for p in phases
    ]
    iterations = int(result.iterations.max()) if len(result.iterations) else 0
    return {
        "engine": operator.engine.name,
        "engine_reason": operator.engine.reason,
        "culled_fraction": float(operator.statistics.culled_fraction),
        "phases": found,
        "precompute": {
            "seconds": seconds,
            "iterations": iterations,
            "residual": [float(r) for r in result.residual],
            # Of y, the largest of its columns: at the start, and after each iteration.
            "history": _history(result, objective.Y.shape[1]),
            "status": result.worst.name,
            "precision": result.precision,
            "kernel_evaluations": kernel_evaluations,
        },
    }


def _history(result: SolveResult, outputs: int) -> list[float]:
    if result.history is None:
        return []
    return [float(r) for r in result.history[:, :outputs].amax(1)]
