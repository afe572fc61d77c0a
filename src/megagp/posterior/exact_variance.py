"""Variance by solving with K̂ for every new point, to the tolerance of the solver.

For any w, and r = k(X, x) - K̂ w the residual that is left,

    k(x, x) - wᵀ k(X, x) - wᵀ r  =  exact variance + rᵀ K̂⁻¹ r,

an upper bound whose excess falls with the square of the residual.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from megagp.covariance import Covariance
from megagp.kernels import Kernel
from megagp.neighbours import chunks
from megagp.operator import KernelOperator
from megagp.solvers import ConvergenceWarning, Product, SolveResult, Status, pcg
from megagp.solvers.result import length, relative

# Right-hand sides that are solved at once at most, and the n-vectors a solver holds for each.
MAX_CHUNK = 256
VECTORS = 12
# PCG aims a little below, so that its drift does not cost another round.
MARGIN = 0.8
# New points between which covariances are found at once: a dense matrix, with a solve for each of
# them; and bytes that their solutions may take, each of which is needed with every other.
MOST_ROWS = 5000
SOLUTIONS_BUDGET = 2 * 2**30


class ExactVariance:
    """Latent variances and covariances by solves.

    solve: B (n x t) to a SolveResult with x = K̂⁻¹ B; matmul: V (n x t) to K̂ V, by which the
    residual is measured. X: n x d. memory_budget: bytes for a chunk of new points.
    Cost: a solve and a product with K̂ per chunk.
    """

    def __init__(
        self,
        solve: Callable[[Tensor], SolveResult],
        matmul: Callable[[Tensor], Tensor],
        X: Tensor,
        kernel: Kernel,
        *,
        memory_budget: int = 512 * 2**20,
    ) -> None:
        self._solve, self._matmul = solve, matmul
        self._X, self._kernel = X, kernel
        self._chunk = max(1, min(MAX_CHUNK, memory_budget // (8 * VECTORS * len(X))))

    @torch.no_grad()
    def latent(self, X_new: Tensor) -> Tensor:
        """The variance of the function at new points, t x d to t."""
        variance = self._kernel.on(X_new.device, torch.float64).diagonal(X_new).clone()
        missed = []
        for chunk in chunks(len(X_new), self._chunk):
            K = self._cross(X_new[chunk])
            result = self._solve(K)
            missed += [] if result.converged else [result]
            R = K - self._matmul(result.x)
            variance[chunk] -= (result.x * K.add_(R)).sum(dim=0)
        _warn(missed)
        return variance.clamp_(min=0.0)

    @torch.no_grad()
    def covariance(self, X_new: Tensor) -> Tensor:
        """The covariance of the function between new points, t x t; 4 n t bytes of memory.

        K_** - Wᵀ K_* - K_*ᵀ W + Wᵀ K̂ W = exact covariance + Rᵀ K̂⁻¹ R: symmetric, and positive
        semidefinite within roundoff.
        """
        parts = chunks(len(X_new), self._chunk)
        W = self._solutions(X_new, parts)
        S = KernelOperator(X_new, self._kernel, dtype="float64").block()
        for j in parts:
            K = self._cross(X_new[j])
            K.mul_(2).sub_(self._matmul(W[:, j].double()))  # K + R
            for i in parts:
                S[i, j] -= W[:, i].double().T @ K
        return 0.5 * (S + S.T)

    def _solutions(self, X_new: Tensor, parts: list[slice]) -> Tensor:
        """W, n x t, in float32: the formula holds for any W, and rounding is of second order."""
        W = self._X.new_empty(len(self._X), len(X_new), dtype=torch.float32)
        missed = []
        for j in parts:
            result = self._solve(self._cross(X_new[j]))
            missed += [] if result.converged else [result]
            W[:, j] = result.x
        _warn(missed)
        return W

    def _cross(self, X_new: Tensor) -> Tensor:
        """k(X, X_new), n x t."""
        return KernelOperator(self._X, self._kernel, X_new, dtype="float64").block()


def solve_to_excess(
    covariance: Covariance,
    B: Tensor,
    precondition: Product,
    limit: Tensor,
    *,
    max_iter: int,
) -> SolveResult:
    """K̂ x = B until rᵀP⁻¹r <= limit (t) for each column, with r = B - K̂x in float64.

    With P ≼ K̂ that bounds rᵀK̂⁻¹r, by which x raises a variance. The norm of r says less: where
    the noise is small, ‖r‖² / σ² exceeds rᵀK̂⁻¹r by orders of magnitude.
    In float32 first; columns that it leaves above their limit go on in float64.
    """
    precise = covariance.precise()
    x, R = torch.zeros_like(B), B.clone()
    excess = covariance.ranks.agree((R * precondition(R)).sum(dim=0))
    iterations = torch.zeros(B.shape[1], dtype=torch.long)
    status = [Status.CONVERGED] * B.shape[1]
    products = 0
    for working in (covariance, precise):
        todo = (excess > limit).nonzero()[:, 0]
        if not len(todo):
            break
        step = pcg(
            working.matmul,
            R[:, todo].contiguous(),
            precondition=precondition,
            rtol=0.0,
            excess=MARGIN * limit[todo],
            max_iter=max_iter - int(iterations.max()),
            verify=False,
            ranks=covariance.ranks,
        )
        trial = x[:, todo] + step.x
        left = B[:, todo] - precise.matmul(trial)
        found = covariance.ranks.agree((left * precondition(left)).sum(dim=0))
        # A correction in too low a precision can make things worse: those are not taken.
        fell = found < excess[todo]
        x[:, todo[fell]], R[:, todo[fell]] = trial[:, fell], left[:, fell]
        excess[todo[fell]] = found[fell]
        iterations[todo] += step.iterations
        products += step.products + len(todo)
        for j, s in zip(todo.tolist(), step.status, strict=True):
            missed = Status.STAGNATED if s is Status.CONVERGED else s
            status[j] = Status.CONVERGED if excess[j] <= limit[j] else missed
    return SolveResult(
        x, tuple(status), iterations, relative(length(R), length(B)), products=products, R=R
    )


def most_rows(n: int) -> int:
    """New points whose covariance may be asked for, from n training points."""
    return max(1, min(MOST_ROWS, SOLUTIONS_BUDGET // (4 * n)))


def _warn(missed: list[SolveResult]) -> None:
    if missed:
        worst = max(missed, key=lambda result: float(result.residual.max()))
        warnings.warn(
            f"The exact variance is an upper bound only: relative residual "
            f"{float(worst.residual.max()):.2g}. {worst.worst.value}",
            ConvergenceWarning,
            stacklevel=3,
        )
