"""What a solve returns: the solution and the evidence for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor


class ConvergenceWarning(UserWarning):
    """A result rests on a solve that did not reach its tolerance."""


class Status(Enum):
    """How a right-hand side came out; the value says what to do about it."""

    CONVERGED = "The residual is within the tolerance."
    MAX_ITER = (
        "The residual was still falling when max_iter was reached; "
        "raise max_iter, or the rank of the preconditioner."
    )
    STAGNATED = (
        "The residual stopped falling above the tolerance; raise the noise variance "
        "(noise_floor), the rank of the preconditioner, or rtol."
    )
    BREAKDOWN = (
        "The matrix did not act as a positive definite one in this precision; raise the noise "
        "variance (noise_floor), or evaluate in float64."
    )


@dataclass(frozen=True)
class Coefficients:
    """The step sizes of CG, iterations x t, NaN after a column was dropped or began anew.

    They hold the Lanczos matrix of each column (lanczos.py).
    """

    alpha: Tensor
    beta: Tensor
    start: Tensor  # rᵀ P⁻¹ r at the start: t


@dataclass(frozen=True)
class SolveResult:
    """x with K̂ x = B, and how it was found, column by column.

    x: n x t. status: t. iterations: t. residual: t, ‖B - K̂x‖ / ‖B‖ by column, in the norm of P⁻¹
    if the solve was in that.
    precision: how K was evaluated for the solution. products: columns multiplied by K in all.
    R: B - K̂x, n x t, as far as the solver kept it.
    history: (1 + iterations) x t, the relative residual by iteration, as the recurrence has it.
    """

    x: Tensor
    status: tuple[Status, ...]
    iterations: Tensor
    residual: Tensor
    precision: str = "float64"
    products: int = 0
    coefficients: Coefficients | None = None
    R: Tensor | None = None
    history: Tensor | None = None

    @property
    def converged(self) -> bool:
        return all(s is Status.CONVERGED for s in self.status)

    @property
    def worst(self) -> Status:
        """The status furthest from success, of all columns."""
        order = list(Status)
        return max(self.status, key=order.index, default=Status.CONVERGED)

    def columns(self, which: slice) -> SolveResult:
        """What it says of some of the columns."""
        c = self.coefficients
        return replace(
            self,
            x=self.x[:, which],
            status=self.status[which],
            iterations=self.iterations[which],
            residual=self.residual[which],
            coefficients=c and Coefficients(c.alpha[:, which], c.beta[:, which], c.start[which]),
            R=None if self.R is None else self.R[:, which],
        )

    def beside(self, other: SolveResult) -> SolveResult:
        """The columns of both, these first; the solutions of one matrix in two precisions."""
        blank = self.x.new_zeros(0, self.x.shape[1])
        a, b = self.coefficients or Coefficients(blank, blank, blank.sum(0)), other.coefficients
        assert b is not None
        assert self.R is not None
        assert other.R is not None
        steps = max(len(a.alpha), len(b.alpha))
        alpha = torch.cat([_longer(a.alpha, steps), _longer(b.alpha, steps)], dim=1)
        beta = torch.cat([_longer(a.beta, steps), _longer(b.beta, steps)], dim=1)
        return SolveResult(
            torch.cat([self.x, other.x], dim=1),
            self.status + other.status,
            torch.cat([self.iterations, other.iterations]),
            torch.cat([self.residual, other.residual]),
            self.precision,
            self.products + other.products,
            Coefficients(alpha, beta, torch.cat([a.start, b.start])),
            torch.cat([self.R, other.R], dim=1),
        )

    def explain(self, rtol: float | Tensor) -> str:
        """One sentence for people: what was reached, what was asked for, what to do.

        rtol: of all columns, or of each.
        """
        most = int(self.iterations.max())
        asked = torch.as_tensor(rtol, dtype=torch.float64).expand(len(self.residual))
        share = torch.where(self.residual == 0, 0.0, self.residual / asked)  # NaN is the largest
        furthest = int(share.argmax())
        return (
            f"relative residual {float(self.residual[furthest]):.2g} after {most} iterations, "
            f"tolerance {float(asked[furthest]):.2g}. {self.worst.value}"
        )


def _longer(history: Tensor, steps: int) -> Tensor:
    """With rows of NaN up to so many."""
    blank = history.new_full((steps - len(history), history.shape[1]), torch.nan)
    return torch.cat([history, blank])


def length(T: Tensor, precondition: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """‖t‖ by column, or the root of tᵀ P⁻¹ t."""
    return ((T if precondition is None else precondition(T)) * T).sum(0).clamp(min=0.0).sqrt()


def relative(residual: Tensor, size: Tensor) -> Tensor:
    """The length of the residual relative to that of B; zeros count as solved by zeros."""
    return torch.where(size > 0, residual / size.clamp(min=1e-300), residual)
