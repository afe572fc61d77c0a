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

from megagp.kernels import Kernel
from megagp.operator import KernelOperator
from megagp.posterior.neighbours import chunks
from megagp.solvers import ConvergenceWarning, SolveResult

# Right-hand sides that are solved at once at most, and the n-vectors a solver holds for each.
MAX_CHUNK = 256
VECTORS = 12


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
        """The covariance of the function between new points, t x t; O(n t) memory.

        K_** - Wᵀ K_* - K_*ᵀ W + Wᵀ K̂ W = exact covariance + Rᵀ K̂⁻¹ R: symmetric, and positive
        semidefinite within roundoff.
        """
        K = self._cross(X_new)
        parts = chunks(len(X_new), self._chunk)
        results = [self._solve(K[:, j].contiguous()) for j in parts]
        _warn([result for result in results if not result.converged])
        W = torch.cat([result.x for result in results], dim=1)
        S = KernelOperator(X_new, self._kernel, dtype="float64").block()
        for j, result in zip(parts, results, strict=True):
            R = K[:, j] - self._matmul(result.x)
            S[:, j] -= W.T @ (K[:, j] + R)
        return 0.5 * (S + S.T)

    def _cross(self, X_new: Tensor) -> Tensor:
        """k(X, X_new), n x t."""
        return KernelOperator(self._X, self._kernel, X_new, dtype="float64").block()


def _warn(missed: list[SolveResult]) -> None:
    if missed:
        worst = max(missed, key=lambda result: float(result.residual.max()))
        warnings.warn(
            f"The exact variance is an upper bound only: relative residual "
            f"{float(worst.residual.max()):.2g}. {worst.worst.value}",
            ConvergenceWarning,
            stacklevel=3,
        )
