"""Variance from a Lanczos cache: the way of Pleiss et al. (2018), kept for comparison.

K̂ is projected on the Krylov space of one vector, T = Qᵀ K̂ Q, and

    k(x, x) - k(x, X) Q T⁻¹ Qᵀ k(X, x)

is at or above the exact variance, as for every subspace. The space knows much about the one
vector it started from and little about others, so the bound is loose.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from megagp.kernels import Kernel
from megagp.neighbours import chunks
from megagp.operator import KernelOperator

# A direction this much shorter than K̂ q is roundoff: the space is exhausted.
BREAKDOWN = 1e-10
# A sum of outputs this much smaller than they are is what rounding in K̂ V has left of it.
CANCELLED = 1e-5


class LanczosVariance:
    """Latent variances from `rank` Lanczos vectors of K̂.

    matmul: V (n x t) to K̂ V. X: n x d. noise: n, the variances within K̂. start: n, not 0.
    memory_budget: bytes for a chunk of new points.
    Cost: `rank` products with K̂ and O(n rank²) once; O(n rank) per new point.
    """

    def __init__(
        self,
        matmul: Callable[[Tensor], Tensor],
        X: Tensor,
        kernel: Kernel,
        noise: Tensor,
        start: Tensor,
        *,
        rank: int = 100,
        memory_budget: int = 256 * 2**20,
    ) -> None:
        if rank < 1:
            raise ValueError(f"rank: expected at least 1, got {rank}; the usual is 100")
        if not float(start.norm()) > 0:
            raise ValueError(
                "start: expected a vector other than 0, got 0; one of ones does as well"
            )
        self._X, self._kernel, self._memory_budget = X, kernel, memory_budget
        Q, T = lanczos(matmul, start, min(rank, len(X)))
        values, vectors = torch.linalg.eigh(T)
        # T's eigenvalues lie between those of K̂, hence above the noise, but for roundoff in K̂ V.
        self._R = (Q @ vectors) / values.clamp(min=float(noise.min())).sqrt()

    @property
    def rank(self) -> int:
        """The number of vectors found: what was asked for, or where the space was exhausted."""
        return int(self._R.shape[1])

    @torch.no_grad()
    def latent(self, X_new: Tensor) -> Tensor:
        """The variance of the function at new points, t x d to t."""
        variance = self._kernel.on(X_new.device, torch.float64).diagonal(X_new).clone()
        rows = max(1, self._memory_budget // (32 * (self.rank + X_new.shape[1])))
        for chunk in chunks(len(X_new), rows):
            # In float64: R is large where the noise is small.
            K = KernelOperator(X_new[chunk], self._kernel, self._X, dtype="float64")
            variance[chunk] -= K.matmul(self._R).square_().sum(dim=1)
        return variance.clamp_(min=0.0)


def lanczos_start(Y: Tensor) -> Tensor:
    """The vector to start from: the sum of the outputs, n x p to n.

    Ones where that is nothing, since outputs are 0 or cancel: every vector gives a bound.
    """
    total = Y.sum(dim=1)
    if float(total.norm()) > CANCELLED * float(Y.norm()):
        return total
    return torch.ones_like(total)


@torch.no_grad()
def lanczos(matmul: Callable[[Tensor], Tensor], start: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Q, n x r with orthonormal columns, and T = Qᵀ K̂ Q, r x r tridiagonal; r <= rank.

    Every vector is made orthogonal to all before it, twice: what once leaves behind grows.
    """
    Q = start.new_empty(len(start), rank, dtype=torch.float64)
    T = Q.new_zeros(rank, rank)
    Q[:, 0] = start / start.norm()
    for i in range(rank):
        v = matmul(Q[:, i : i + 1])[:, 0]
        size = v.norm()
        T[i, i] = Q[:, i] @ v
        for _ in range(2):
            v = v - Q[:, : i + 1] @ (Q[:, : i + 1].T @ v)
        beta = v.norm()
        if i + 1 == rank or beta <= BREAKDOWN * size:
            return Q[:, : i + 1], T[: i + 1, : i + 1]
        T[i, i + 1] = T[i + 1, i] = beta
        Q[:, i + 1] = v / beta
    raise AssertionError("rank is at least 1")
