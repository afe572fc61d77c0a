"""PCG in float32 evaluation, held to the residual of the float64 one.

Entries of K rounded to float32 make a matrix next to K̂; its solution can miss the tolerance
on K̂ itself when the noise is small. So: solve, take the residual in float64, solve for the
correction (iterative refinement), and when float32 no longer gains, go on in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from megagp.covariance import Covariance
from megagp.solvers.pcg import PATIENCE, Callback, Product, Saver, pcg
from megagp.solvers.result import SolveResult, Status, length, relative

ROUNDS = 6
# A round must reduce the residual by this factor for the next to be in the same precision.
GAIN = 0.3
# What a round in float32 may aim for: its matrix agrees with K̂ to about that.
FLOAT32_GAIN = 1e-5
# PCG aims a little below, so that roundoff in the entries does not cost another round.
MARGIN = 0.8


def solve(
    covariance: Covariance,
    B: Tensor,
    precondition: Product | None = None,
    *,
    rtol: float | Tensor = 0.01,
    max_iter: int = 1000,
    x0: Tensor | None = None,
    natural: bool = False,
    gain: float = FLOAT32_GAIN,
    patience: int = PATIENCE,
    precise: Covariance | None = None,
    callback: Callback | None = None,
    saver: Saver | None = None,
) -> SolveResult:
    """K̂ x = B with ‖B - K̂x‖ <= rtol ‖B‖ for each column, the residual evaluated in float64.

    B: n x t. rtol: one for all columns or one for each. max_iter: iterations in all, over the
    rounds of refinement. natural: rᵀ P⁻¹ r in place of ‖r‖², as in `pcg`.
    gain: by how much a round in float32 is to reduce the residual, at best; patience: iterations
    without progress after which it ends. precise: K̂ in float64, if it is at hand.
    saver: starts from the x that it has kept, if any, with residuals of its own.
    """
    kept = None if saver is None else saver.load()
    x0 = x0 if kept is None else kept["x"]
    agree = covariance.ranks.agree
    wanted = torch.as_tensor(rtol, dtype=B.dtype).expand(B.shape[1])
    precise = covariance.precise() if precise is None else precise
    by = precondition if natural else None
    working = precise if covariance.operator.dtype == torch.float64 else covariance
    x = torch.zeros_like(B) if x0 is None else x0.clone()
    R = B.clone() if x0 is None else B - precise.matmul(x0)
    size = length(B, by)
    residual = agree(relative(length(R, by), size))
    iterations = torch.zeros(B.shape[1], dtype=torch.long) if kept is None else kept["iterations"]
    done = residual <= wanted
    status = [Status.CONVERGED if met else Status.MAX_ITER for met in done]
    products = 0 if x0 is None else B.shape[1]
    rounds, used = 0, working
    history = [residual[None]]
    while rounds < ROUNDS and not all(s is Status.CONVERGED for s in status):
        rounds, used = rounds + 1, working
        todo = torch.tensor([j for j, s in enumerate(status) if s is not Status.CONVERGED])
        step = pcg(
            working.matmul,
            R[:, todo].contiguous(),
            precondition=precondition,
            rtol=(MARGIN * wanted[todo] / residual[todo]).clamp(
                min=0.0 if working is precise else gain, max=0.5
            ),
            max_iter=max_iter - int(iterations.max()),
            patience=PATIENCE if working is precise else patience,
            verify=False,
            natural=natural,
            smooth=not natural,
            callback=callback,
            ranks=covariance.ranks,
            saver=None if saver is None else _Correction(saver, x, iterations, todo),
        )
        before = residual
        assert step.history is not None
        # A round starts from R: what it reports is relative to that.
        shown = before.repeat(len(step.history) - 1, 1)
        shown[:, todo] *= step.history[1:]
        history.append(shown)
        trial = x[:, todo] + step.x
        left = B[:, todo] - precise.matmul(trial)
        # A correction in too low a precision can make things worse: those are not taken.
        now = agree(relative(length(left, by), size[todo]))
        fell = now < before[todo]
        x[:, todo[fell]], R[:, todo[fell]] = trial[:, fell], left[:, fell]
        residual = before.clone()
        residual[todo[fell]] = now[fell]
        iterations[todo] += step.iterations
        products += step.products + len(todo)
        for j, s in zip(todo.tolist(), step.status, strict=True):
            # Converged on the working matrix but not on K̂: the precision is what failed.
            failed = Status.STAGNATED if s is Status.CONVERGED else s
            status[j] = Status.CONVERGED if residual[j] <= wanted[j] else failed
        if int(iterations.max()) >= max_iter:
            break
        missed = todo[residual[todo] > wanted[todo]]
        gaining = bool((residual[missed] <= GAIN * before[missed]).all())
        if gaining and rounds < ROUNDS - 1:
            continue
        if working is precise and not gaining:
            break
        working = precise
    if saver is not None:
        saver.keep({"x": x, "iterations": iterations})
    name = str(used.operator.dtype).removeprefix("torch.")
    if used is not precise and rounds > 1:
        name += ", refined"
    return SolveResult(
        x, tuple(status), iterations, residual, name, products, R=R, history=torch.cat(history)
    )


class _Correction:
    """A saver for the correction of some columns of x, that keeps what x would be with it."""

    def __init__(self, saver: Saver, x: Tensor, iterations: Tensor, columns: Tensor) -> None:
        self._saver, self._x, self._iterations, self._columns = saver, x, iterations, columns

    def load(self) -> None:
        """A correction always starts at zero: x has what was kept."""

    def offer(self, state: Callable[[], dict[str, Tensor]]) -> None:
        def corrected() -> dict[str, Tensor]:
            x, iterations, made = self._x.clone(), self._iterations.clone(), state()
            x[:, self._columns] += made["S" if "S" in made else "X"]
            iterations[self._columns] += made["iterations"]
            return {"x": x, "iterations": iterations}

        self._saver.offer(corrected)

    def keep(self, state: dict[str, Tensor]) -> None:
        """The whole solve is kept at its end, not its parts."""
