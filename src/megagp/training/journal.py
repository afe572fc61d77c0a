"""An evaluation of the likelihood as plain JSON and tensors, and back."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from megagp.checkpoint import State
from megagp.likelihood import Evaluation, generalised_least_squares
from megagp.solvers import SolveResult, Status


def pack(found: Evaluation) -> tuple[dict[str, Any], State]:
    """What training needs of an evaluation: numbers, and solutions to start from."""
    entry = {
        "value": found.value,
        # Of a single probe there is none.
        "standard_error": found.standard_error if math.isfinite(found.standard_error) else None,
        "gradient": {name: g.tolist() for name, g in found.gradient.items()},
        "status": [status.name for status in found.solve.status],
        "iterations": found.solve.iterations.tolist(),
        "rounding": found.rounding,
    }
    return entry, {"solutions": found.solutions}


def unpack(entry: dict[str, Any], state: State, Y: Tensor, H: Tensor) -> Evaluation:
    """The evaluation; where its solutions were not kept, zeros, which are a start as well."""
    p = Y.shape[1]
    blank = Y.new_zeros(len(Y), p + H.shape[1])
    solutions = state.get("solutions", blank)
    VY, VH = solutions[:, :p], solutions[:, p:]
    trend = generalised_least_squares(H, Y, VH, VY)
    iterations = torch.tensor(entry["iterations"])
    return Evaluation(
        entry["value"],
        {name: torch.tensor(g, dtype=torch.float64) for name, g in entry["gradient"].items()},
        math.inf if entry["standard_error"] is None else entry["standard_error"],
        trend,
        VY - VH @ trend.coefficients,
        solutions,
        SolveResult(
            solutions,
            tuple(Status[name] for name in entry["status"]),
            iterations,
            torch.zeros(len(iterations), dtype=torch.float64),
        ),
        rounding=entry["rounding"],
    )
