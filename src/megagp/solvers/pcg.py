"""Preconditioned conjugate gradients on many right-hand sides at once.

Departures from the textbook, and why:

1. All columns share each product, which evaluates the kernel once for all of them.
2. A column that meets its tolerance is dropped from further products. Probes meet theirs together:
   what is made of them is a mean, and the slowest of them alone would double the iterations.
3. Every RECOMPUTE iterations, and once when all columns are done, residuals are recomputed
   as B - A X: the recurrence drifts, and what it claims is not evidence. A column that
   claimed too much starts again from its true residual.
4. A column that made no progress for `patience` iterations stops as STAGNATED; one with
   pᵀAp <= 0, rᵀP⁻¹r <= 0 or a number that is not finite as BREAKDOWN. Both keep the best x
   since their last progress. Progress is a smaller residual or a smaller energy
   ½ xᵀAx - bᵀx: on ill-conditioned A the residual rises for long while x gets better.
5. Step sizes are kept: they are the Lanczos coefficients from which the log-determinant comes.
6. Of several ranks, all take rank 0's step sizes and residuals, so that none stops before another.
7. With `smooth`, beside x a mean s of the x so far is kept, that of the least ‖b - A s‖ on the way
   from the last s to x (minimal residual smoothing: Schönauer 1987, Weiss 1994): ‖b - A x‖ itself
   goes up and down by factors, and where it is the measure a solve would end at one of its dips.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from megagp.distributed import ALONE, Ranks
from megagp.solvers.result import Coefficients, SolveResult, Status

NONE = slice(0)  # of the columns
RECOMPUTE = 50
PATIENCE = 200
# A recomputed residual may exceed the tolerance by this factor before the column goes on,
SLACK = 1.05
# and the recurrence's by this one before the column starts again: that costs iterations.
DRIFT = 2.0
# A fall of the energy by this share of all it has fallen is progress.
PROGRESS = 1e-3
# What a solve consists of, beside its status and coefficients.
CHANGING = (
    *("X", "R", "P", "residual", "iterations", "best", "best_X", "since_best"),
    *("first_energy", "best_energy", "restarted", "rz", "start"),
)

Product: TypeAlias = Callable[[Tensor], Tensor]
Callback: TypeAlias = Callable[[int, float], None]  # iteration, largest relative residual


class Saver(Protocol):
    """Keeps the state of a solve, so that it can be taken up again."""

    def load(self) -> dict[str, Tensor] | None:
        """What was kept of this solve."""

    def offer(self, state: Callable[[], dict[str, Tensor]]) -> None:
        """Called at every iteration; `state` makes what may be kept."""

    def keep(self, state: dict[str, Tensor]) -> None:
        """Called at the end of a solve that is worth keeping."""


def pcg(
    matmul: Product,
    B: Tensor,
    *,
    precondition: Product | None = None,
    rtol: float | Tensor = 0.01,
    excess: Tensor | None = None,
    pooled: slice = NONE,
    max_iter: int = 1000,
    min_iter: int = 0,
    x0: Tensor | None = None,
    verify: bool = True,
    natural: bool = False,
    smooth: bool = False,
    patience: int = PATIENCE,
    callback: Callback | None = None,
    ranks: Ranks = ALONE,
    saver: Saver | None = None,
) -> SolveResult:
    """Solve A X = B, n x t, for symmetric positive definite A by products with it.

    rtol: tolerance on ‖B - A X‖ / ‖B‖, one for all columns or one for each.
    natural: with rᵀ P⁻¹ r in place of ‖r‖². That is next to rᵀ A⁻¹ r, the error of x in the norm
    of A, and what quadratic forms need; it costs nothing more.
    smooth: find s, of which ‖B - A s‖ never rises from one RECOMPUTE to the next, in place of x;
    without `natural` or `verify`.
    excess: a column is done, too, when rᵀP⁻¹r is at most this; t.
    pooled: these columns are done together, when the root mean square of their residuals, each
    relative to its tolerance, is at most 1. Neither with `verify`, which knows the residuals of
    single columns alone: whoever asks for them checks them.
    patience: iterations without progress after which a column is given up as STAGNATED.
    min_iter: iterations before a column may be dropped, for tolerances that zero would meet.
    precondition: P⁻¹, applied to n x t. verify: recompute residuals before the end; without
    it, a product or two less, and the residual is the recurrence's.
    saver: goes on from the iteration that it has kept, if any.
    Cost: one product with A and one with P⁻¹ per iteration.
    """
    if verify and (excess is not None or pooled != NONE or smooth):
        raise ValueError(
            "excess, pooled, smooth: expected together with verify=False, got verify=True"
        )
    if smooth and natural:
        raise ValueError("smooth: expected together with natural=False, got natural=True")
    kept = None if saver is None else saver.load()
    start = x0 if kept is None else None
    run = _Run(matmul, B, precondition, rtol, start, natural, smooth, ranks)
    run.excess, run.patience = excess, patience
    run.pooled[pooled] = True
    if kept is not None:
        run.restore(kept)
    run.drop_finished(min_iter == 0)
    for iteration in range(len(run.alpha) + 1, max_iter + 1):
        if not run.active.numel():
            break
        run.step()
        if callback is not None:
            callback(iteration, float(run.residual.max()))
        if iteration % RECOMPUTE == 0:
            run.renew()
        run.drop_finished(iteration >= min_iter)
        if saver is not None:
            saver.offer(run.state)
        if verify and not run.active.numel():
            run.verify()
    run.close(verify)
    return run.result()


class _Run:
    """The state of one solve; `active` are the columns still iterated."""

    def __init__(
        self,
        matmul: Product,
        B: Tensor,
        precondition: Product | None,
        rtol: float | Tensor,
        x0: Tensor | None,
        natural: bool,
        smooth: bool,
        ranks: Ranks,
    ) -> None:
        t = B.shape[1]
        self.matmul, self.B, self.ranks = matmul, B, ranks
        self.natural, self.smooth = natural, smooth
        self.precondition = precondition or torch.clone
        self.rtol = torch.as_tensor(rtol, dtype=B.dtype).expand(t)
        self.excess: Tensor | None = None
        self.pooled = torch.zeros(t, dtype=torch.bool)
        self.patience = PATIENCE
        self.X = torch.zeros_like(B) if x0 is None else x0.clone()
        self.R = B.clone()
        self.products = 0
        if x0 is not None:
            self.R -= matmul(x0)
            self.products += t
        self._take_found(self.X, self.R)
        Z = self.precondition(self.R)
        self.rz = ranks.agree((self.R * Z).sum(0))
        self.size = self.rz.clone() if natural and x0 is None else self._square(B)
        self.residual = self._relative(self.R, torch.arange(t), self.rz if natural else None)
        self.status = [Status.MAX_ITER] * t
        self.iterations = torch.zeros(t, dtype=torch.long)
        self.best, self.best_X = self.residual.clone(), self.X.clone()
        self.since_best = torch.zeros(t, dtype=torch.long)
        self.first_energy = self._energy()
        self.best_energy = self.first_energy.clone()
        self.refuted = torch.full_like(self.residual, torch.inf)
        self.restarted = torch.zeros(t, dtype=torch.bool)
        self.history = [self.residual.clone()]
        self.alpha: list[Tensor] = []
        self.beta: list[Tensor] = []
        self.start = self.rz.clone()
        self.P = Z.clone()  # an identity may have returned R itself, which changes in place
        self.active = self._with(Status.MAX_ITER)

    def step(self) -> None:
        """One iteration of every active column."""
        a = self.active
        every = len(a) == self.B.shape[1]
        P = self.P if every else self.P[:, a]
        Q = self.matmul(P)
        self.products += len(a)
        pq = self.ranks.agree((P * Q).sum(0))
        sound = (pq > 0) & (self.rz[a] > 0) & pq.isfinite() & self.rz[a].isfinite()
        alpha = torch.where(sound, self.rz[a] / pq, 0.0)
        if every:
            self.X.addcmul_(alpha, P)
            self.R.addcmul_(-alpha, Q)
            R = self.R
        else:
            self.X[:, a] += alpha * P
            R = self.R[:, a] - alpha * Q
            self.R[:, a] = R
        Z = self.precondition(R)
        rz = self.ranks.agree((R * Z).sum(0))
        beta = torch.where(self.rz[a] != 0, rz / self.rz[a], 0.0)
        if every:
            self.P = torch.addcmul(Z, beta, P)
        else:
            self.P[:, a] = torch.addcmul(Z, beta, P)
        self.rz[a] = rz
        if self.smooth:
            R = self._smoothed(R)
        self._record(alpha, beta, sound, R, rz)

    def _smoothed(self, R: Tensor) -> Tensor:
        """Moves s to s + η (x - s), η that of the least residual, which is given back."""
        a = self.active
        D = R - self.RS[:, a]
        square = self.ranks.agree(D.square().sum(0))
        along = self.ranks.agree((self.RS[:, a] * D).sum(0))
        eta = torch.where(square > 0, -along / square, 0.0)
        self.S[:, a] += eta * (self.X[:, a] - self.S[:, a])
        self.RS[:, a] += eta * D
        return self.RS[:, a]

    def _take_found(self, S: Tensor, RS: Tensor) -> None:
        """What the solve has found, and its residual: X and R themselves, if not smoothed."""
        self.S, self.RS = (S.clone(), RS.clone()) if self.smooth else (self.X, self.R)

    def _record(self, alpha: Tensor, beta: Tensor, sound: Tensor, R: Tensor, rz: Tensor) -> None:
        a = self.active
        for history, values in ((self.alpha, alpha), (self.beta, beta)):
            row = torch.full((self.B.shape[1],), torch.nan, dtype=self.B.dtype)
            # After another start the steps are those of another Lanczos matrix.
            row[a] = torch.where(sound & ~self.restarted[a], values, torch.nan)
            history.append(row)
        self.iterations[a] += sound.long()
        self.residual[a] = self._relative(R, a, rz if self.natural else None)
        self.history.append(self.residual.clone())
        broken = a[~(sound & self.residual[a].isfinite())]
        for j in broken.tolist():
            self.status[j] = Status.BREAKDOWN
        self._note_best()
        self.active = self._with(Status.MAX_ITER)

    def _note_best(self) -> None:
        a = self.active
        better = self.residual[a] < 0.99 * self.best[a]
        self.since_best[a] = torch.where(better, 0, self.since_best[a] + 1)
        improved = a[self.residual[a] < self.best[a]]
        self.best[improved] = self.residual[improved]
        self.best_X[:, improved] = self.S[:, improved]
        stuck = (self.since_best[a] >= self.patience) & (self.residual[a] > self.rtol[a])
        for j in a[stuck].tolist():
            if self.status[j] is Status.MAX_ITER:
                self.status[j] = Status.STAGNATED

    def recompute(self, columns: Tensor) -> None:
        """The residual of these columns as B - A X, in place of the recurrence's."""
        if not len(columns):
            return
        self.R[:, columns] = self.B[:, columns] - self.matmul(self.X[:, columns].contiguous())
        self.products += len(columns)
        self.residual[columns] = self._relative(self.R[:, columns], columns)

    def renew(self) -> None:
        """True residuals of the active columns, and whether their energies fell."""
        a = self.active
        claimed = self._relative(self.R[:, a], a) if self.smooth else self.residual[a].clone()
        before = self.R[:, a].clone() if self.smooth else None
        self.recompute(a)
        self._restart(a[self.residual[a] > DRIFT * claimed])
        if before is not None:  # s has drifted as x has, of which it is a mean
            self.RS[:, a] += self.R[:, a] - before
            again = a[self.restarted[a]]
            self.S[:, again], self.RS[:, again] = self.X[:, again], self.R[:, again]
            self.residual[a] = self._relative(self.RS[:, a], a)
        energy = self._energy()
        least = self.best_energy - PROGRESS * (self.first_energy - self.best_energy)
        fell = a[energy[a] < least[a]]
        self.best_energy[fell], self.since_best[fell] = energy[fell], 0
        self.best[fell], self.best_X[:, fell] = self.residual[fell], self.S[:, fell]

    def _energy(self) -> Tensor:
        """½ xᵀAx - bᵀx = -½ xᵀ(b + r), column by column; r must be a true residual."""
        return self.ranks.agree(-0.5 * (self.X * (self.B + self.R)).sum(0))

    def _square(self, R: Tensor) -> Tensor:
        """‖r‖² or rᵀ P⁻¹ r, column by column."""
        return self.ranks.agree((R * (self.precondition(R) if self.natural else R)).sum(0))

    def _relative(self, R: Tensor, columns: Tensor, square: Tensor | None = None) -> Tensor:
        """The size of R relative to that of B; 0 where both are zero."""
        square = self._square(R) if square is None else square
        return torch.where(square == 0, 0.0, square.clamp(min=0.0) / self.size[columns]).sqrt()

    def _restart(self, columns: Tensor) -> None:
        """Steepest descent from the present residual of these columns."""
        if not len(columns):
            return
        Z = self.precondition(self.R[:, columns])
        self.P[:, columns] = Z
        self.rz[columns] = self.ranks.agree((self.R[:, columns] * Z).sum(0))
        self.restarted[columns] = True

    def drop_finished(self, by_tolerance: bool) -> None:
        """Columns within their tolerance; or, before min_iter, those with nothing left."""
        a = self.active
        nothing = torch.full_like(self.rtol, torch.finfo(self.B.dtype).eps)
        limit = self.rtol if by_tolerance else torch.minimum(self.rtol, nothing)
        done = self.residual[a] <= limit[a]
        pooled = self.pooled[a]
        if pooled.any():
            ratio = self.residual[a][pooled] / limit[a][pooled]
            done[pooled] = bool(ratio.square().mean() <= 1)
        if by_tolerance and self.excess is not None:
            done |= self.rz[a] <= self.excess[a]
        for j in a[done].tolist():
            if self.status[j] is Status.MAX_ITER:
                self.status[j] = Status.CONVERGED
        self.active = self._with(Status.MAX_ITER)

    def verify(self) -> None:
        """Check what converged columns claim; those that claimed too much go on."""
        claimed = self._with(Status.CONVERGED)
        claimed = claimed[self.iterations[claimed] > 0]
        self.recompute(claimed)
        failed = claimed[self.residual[claimed] > SLACK * self.rtol[claimed]]
        if not len(failed):
            return
        self._restart(failed)
        self.best[failed], self.best_X[:, failed] = self.residual[failed], self.X[:, failed]
        for j in failed.tolist():
            # Another start that gained nothing: this is what the precision can do.
            stuck = self.residual[j] > 0.5 * self.refuted[j]
            self.status[j] = Status.STAGNATED if stuck else Status.MAX_ITER
        self.refuted[failed] = self.residual[failed]
        self.active = self._with(Status.MAX_ITER)

    def close(self, verify: bool) -> None:
        """The best x of columns that got stuck, and true residuals where none are known yet."""
        stuck = torch.cat([self._with(Status.STAGNATED), self._with(Status.BREAKDOWN)])
        self.S[:, stuck], self.residual[stuck] = self.best_X[:, stuck], self.best[stuck]
        if not verify:
            return
        unfinished = self.active
        if len(unfinished):  # max_iter came before the end, where claims are checked
            self.verify()
        self.recompute(torch.cat([stuck, unfinished]))

    def _changing(self) -> tuple[str, ...]:
        return (*CHANGING, "S", "RS") if self.smooth else CHANGING

    def state(self) -> dict[str, Tensor]:
        """All that changes from one iteration to the next, in finite numbers."""
        found: dict[str, Tensor] = {name: getattr(self, name) for name in self._changing()}
        found["status"] = torch.tensor([list(Status).index(s) for s in self.status])
        found["products"] = torch.tensor(self.products)
        for name, rows in (("alpha", self.alpha), ("beta", self.beta)):
            history = torch.stack(rows)
            found[name] = history.nan_to_num(0.0)
            found[f"{name}_known"] = ~history.isnan()
        found["refuted"] = self.refuted.clamp(max=torch.finfo(self.B.dtype).max)
        return found

    def restore(self, state: dict[str, Tensor]) -> None:
        """Be at the iteration at which `state` was called."""
        for name in (*self._changing(), "refuted"):
            setattr(self, name, state[name])
        if not self.smooth:
            self._take_found(self.X, self.R)
        self.status = [list(Status)[i] for i in state["status"].tolist()]
        self.products = int(state["products"])
        self.alpha = list(torch.where(state["alpha_known"], state["alpha"], torch.nan))
        self.beta = list(torch.where(state["beta_known"], state["beta"], torch.nan))
        self.active = self._with(Status.MAX_ITER)

    def _with(self, status: Status) -> Tensor:
        return torch.tensor([j for j, s in enumerate(self.status) if s is status], dtype=torch.long)

    def result(self) -> SolveResult:
        empty = torch.zeros(0, self.B.shape[1], dtype=self.B.dtype)
        return SolveResult(
            self.S,
            tuple(self.status),
            self.iterations,
            self.residual,
            products=self.products,
            coefficients=Coefficients(
                torch.stack(self.alpha) if self.alpha else empty,
                torch.stack(self.beta) if self.beta else empty,
                self.start,
            ),
            R=self.RS,
            history=torch.stack(self.history),
        )
