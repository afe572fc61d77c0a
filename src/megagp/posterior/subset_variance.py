"""Variance given the pivots and each new point's neighbours: a certified upper bound.

Conditioning a Gaussian process on fewer observations can only raise its variance, so for any
set S of training points

    k(x, x) - k(x, S) K̂_SS⁻¹ k(S, x)  >=  k(x, x) - k(x, X) K̂⁻¹ k(X, x).

Here S = P ∪ N(x): the pivots P, the same for every x, and the nearest training points N(x)
among the others. With C = chol(K̂_PP) and F = k(·, P) C⁻ᵀ kept, the Cholesky factorisation of

    K̂_PP                              C
    K_NP  K̂_NN              into      F_N  L
    k_xP  k_xN  k_xx                  b    a   ·

is continued from column |P| on, and k(x, x) - |b|² - |a|² is the variance.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from megagp.kernels import Constant, Kernel, Linear, Stationary
from megagp.kernels.composite import Composite
from megagp.operator import KernelOperator
from megagp.posterior.neighbours import Neighbours, chunks, metric_features

# Columns factorised at once. LAPACK runs small Cholesky factorisations at a tenth of the speed
# of products, so their size is kept small and products do the rest.
WIDTH = 48
# Neighbours of new points factorised together: enough to share the cost of a call, few enough
# for the caches.
BATCH_ROWS = 1024
# More noise means less information, hence more variance: with jitter the bound still holds.
JITTERS = (0.0, 1e-14, 1e-12, 1e-10, 1e-8)
# From how many neighbours `choose_neighbours` chooses, and from how many points it learns.
CHOICES = (32, 64, 96, 128, 192, 256, 384, 512)
SAMPLE = 48


class SubsetVariance:
    """Latent variances from the pivots and `neighbours` nearest training points, jointly.

    X: n x d; noise: n, the noise variance of each point; pivots: k indices into X.
    neighbours: m, or None for as few as bring the median excess of the observed standard
        deviation over the exact one down to about `excess`; see `choose_neighbours`.
    memory_budget: bytes beyond the arguments. If F (n x k) takes more than half of it, rows
        of F are made anew for each chunk of new points, at k² each.
    Cost: O(n k²) once; O(m² k + m³) and a neighbour search per new point.
    """

    def __init__(
        self,
        X: Tensor,
        kernel: Kernel,
        noise: Tensor,
        pivots: Tensor,
        *,
        neighbours: int | None = None,
        excess: float = 0.015,
        memory_budget: int = 512 * 2**20,
        random_state: int = 0,
    ) -> None:
        if neighbours is not None and neighbours < 0:
            raise ValueError(
                f"neighbours: expected a number >= 0, got {neighbours}; None chooses one"
            )
        self._kernel = kernel
        self._memory_budget = memory_budget
        is_pivot = torch.zeros(len(X), dtype=torch.bool, device=X.device)
        is_pivot[pivots] = True
        # Neighbours come from the rest alone: no observation counts twice.
        self._X_P, self._noise_P = X[is_pivot], noise[is_pivot]
        self._X, self._noise = X[~is_pivot], noise[~is_pivot]
        self._C = self._factorise_pivots()
        entries = len(self._X) * len(self._X_P)
        self._F = self._rows_of_F(self._X) if 16 * entries <= memory_budget else None
        self._search = Neighbours(
            metric_features(kernel, self._X), memory_budget=memory_budget // 8
        )
        if neighbours is None:
            neighbours = self.choose_neighbours(excess, random_state)
        self.neighbours = min(neighbours, len(self._X))

    @torch.no_grad()
    def latent(self, X_new: Tensor) -> Tensor:
        """The variance of the function at new points, t x d to t, never below the exact one."""
        variance = self._kernel.on(X_new.device, torch.float64).diagonal(X_new).clone()
        for chunk in chunks(len(X_new), self._chunk()):
            N = self._search.nearest(metric_features(self._kernel, X_new[chunk]), self.neighbours)
            variance[chunk] -= self._reductions(X_new[chunk], N).sum(dim=1)
        return variance.clamp_(min=0.0)

    @torch.no_grad()
    def choose_neighbours(self, excess: float, random_state: int = 0) -> int:
        """The fewest of CHOICES for which the median excess of the std is about `excess`.

        Leaves training points out one at a time and looks at what the neighbours, nearest
        first, take off the variance. The excess falls about as 1 / m, so what halving m costs
        at the largest m is what is still missing there.
        """
        generator = torch.Generator().manual_seed(random_state)
        sample = torch.randperm(len(self._X), generator=generator)[:SAMPLE].to(self._X.device)
        largest = min(CHOICES[-1], len(self._X) - 1)
        if largest <= CHOICES[0]:
            return CHOICES[0]
        X = self._X[sample]
        N = self._search.nearest(metric_features(self._kernel, X), largest + 1)
        N = _without(N, sample)
        sums = self._reductions(X, N).cumsum(dim=1)
        prior = self._kernel.on(X.device, torch.float64).diagonal(X) + self._noise[sample]
        k = len(self._X_P)
        at = {m: prior - sums[:, k + m - 1] for m in (*CHOICES, largest) if m <= largest}
        half = prior - sums[:, k + largest // 2 - 1]
        limit = (2 * at[largest] - half).clamp(min=0.0).maximum(self._noise[sample])
        for m, variance in at.items():
            if float((variance / limit).sqrt().median()) - 1 <= excess:
                return m
        return largest

    def _chunk(self) -> int:
        """New points in memory at once: their indices, rows of reductions, and F if not kept."""
        per_point = 32 * (1 + self.neighbours + len(self._X_P) + self._X.shape[1])
        if self._F is None:
            per_point += 32 * self.neighbours * len(self._X_P)
        return max(1, min(4096, self._memory_budget // 4 // per_point))

    def _batch(self, m: int) -> int:
        per_point = 8 * (m + 1) * (2 * len(self._X_P) + m + 8 * WIDTH + 4 * self._X.shape[1])
        per_thread = self._memory_budget // 4 // torch.get_num_threads()
        return max(1, min(BATCH_ROWS // m, per_thread // per_point))

    def _reductions(self, X_new: Tensor, N: Tensor) -> Tensor:
        """What each of the k pivots and m neighbours takes off the variance: t x (k + m)."""
        B = self._rows_of_F(X_new)
        if N.shape[1] == 0:
            return B.square()
        rows, F = N, self._F
        if F is None:
            unique, rows = torch.unique(N, return_inverse=True)
            F = self._rows_of_F(self._X[unique])

        def reductions(i: slice) -> Tensor:
            return self._batch_reductions(X_new[i], N[i], F, rows[i], B[i])

        return torch.cat(_in_threads(reductions, chunks(len(X_new), self._batch(N.shape[1]))))

    @torch.no_grad()
    def _batch_reductions(self, x: Tensor, N: Tensor, F: Tensor, rows: Tensor, b: Tensor) -> Tensor:
        """The same for a few new points; rows: where in F those of the neighbours are."""
        F_N = F.index_select(0, rows.reshape(-1)).view(*N.shape, -1)
        X_N = self._X[N]
        for jitter in JITTERS:
            noise = self._noise[N] + jitter * self._scale
            a, done = continue_cholesky(self._kernel, X_N, noise, F_N, x[:, None], b[:, None])
            if done:
                return torch.cat([b, a], dim=1).square()
        raise _not_positive(JITTERS[-1])

    def _rows_of_F(self, X: Tensor) -> Tensor:
        """k(X, P) C⁻ᵀ, row by row in memory: rows are gathered by the thousand."""
        F = X.new_empty(len(X), len(self._X_P))
        if F.numel() == 0:
            return F
        for rows in chunks(len(X), max(1, self._memory_budget // (64 * len(self._X_P)))):
            K = KernelOperator(X[rows], self._kernel, self._X_P, dtype="float64").block()
            F[rows] = torch.linalg.solve_triangular(self._C.mT, K, upper=True, left=False)
        return F

    @torch.no_grad()
    def _factorise_pivots(self) -> Tensor:
        both = torch.cat([self._X_P, self._X])[: max(1, len(self._X_P))]
        self._scale = float(self._kernel.on(both.device, torch.float64).diagonal(both).max())
        if not len(self._X_P):
            return self._X.new_zeros(0, 0)
        K = KernelOperator(self._X_P, self._kernel, dtype="float64").block()
        K.diagonal().add_(self._noise_P)
        for jitter in JITTERS:
            K.diagonal().add_(jitter * self._scale)
            C, info = torch.linalg.cholesky_ex(K)
            if not int(info):
                factor: Tensor = C
                return factor
        raise _not_positive(JITTERS[-1])


def continue_cholesky(
    kernel: Kernel, X: Tensor, noise: Tensor, F: Tensor, x: Tensor, b: Tensor
) -> tuple[Tensor, bool]:
    """The rest of the last row, a, of a factor whose first k columns are F and b; and success.

    X: c x m x d; noise: c x m; F: c x m x k; x: c x 1 x d; b: c x 1 x k. Returns c x m.
    From left to right in blocks of columns, each made when its turn comes: the upper half of
    the matrix is never evaluated.
    """
    c, m, _ = X.shape
    L = F.new_empty(c, m, m)
    a = torch.baddbmm(evaluate_batch(kernel, x, X), b, F.mT, alpha=-1)
    for i in range(0, m, WIDTH):
        j = min(i + WIDTH, m)
        T = evaluate_batch(kernel, X[:, i:], X[:, i:j])
        T[:, : j - i].diagonal(dim1=1, dim2=2).add_(noise[:, i:j])
        T.baddbmm_(F[:, i:], F[:, i:j].mT, alpha=-1)
        T.baddbmm_(L[:, i:, :i], L[:, i:j, :i].mT, alpha=-1)
        D, info = torch.linalg.cholesky_ex(T[:, : j - i])
        if bool(info.any()):
            return a[:, 0], False
        unit = torch.eye(j - i, dtype=D.dtype, device=D.device).expand_as(D)
        D_inverse = torch.linalg.solve_triangular(D, unit, upper=False)
        L[:, i:j, i:j] = D
        torch.bmm(T[:, j - i :], D_inverse.mT, out=L[:, j:, i:j])
        a[:, :, i:j] = a[:, :, i:j] @ D_inverse.mT
        a[:, :, j:] -= a[:, :, i:j] @ L[:, j:, i:j].mT
    return a[:, 0], True


def evaluate_batch(kernel: Kernel, X: Tensor, Z: Tensor) -> Tensor:
    """k between the points of each pair of sets: c x n x m from c x n x d and c x m x d."""
    if isinstance(kernel, Composite):
        K = evaluate_batch(kernel.parts[0], X, Z)
        for part in kernel.parts[1:]:
            K = kernel.combine(K, evaluate_batch(part, X, Z))
        return K
    if type(kernel) is Constant:
        return kernel.outputscale.to(X).expand(len(X), X.shape[1], Z.shape[1]).clone()
    if type(kernel).evaluate in (Stationary.evaluate, Linear.evaluate):
        return kernel.evaluate(X, Z)
    # A formula of the user's own knows matrices, not stacks of them.
    return torch.stack([kernel.evaluate(x, z) for x, z in zip(X, Z, strict=True)])


def _in_threads(work: Callable[[slice], Tensor], parts: list[slice]) -> list[Tensor]:
    """work(part) for all parts, by as many threads as torch has, each on its own.

    Torch's own threads would meet after every small operation, and wait.
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(parts) == 1:
        return [work(part) for part in parts]
    try:
        with ThreadPoolExecutor(threads, "variance", torch.set_num_threads, (1,)) as pool:
            return list(pool.map(work, parts))
    finally:
        # Setting it in one thread sets MKL's number for all of them.
        torch.set_num_threads(threads)


def _without(N: Tensor, own: Tensor) -> Tensor:
    """Rows of N (t x m) without each row's own index, or without its last: t x (m - 1)."""
    drop = own[:, None] == N
    drop[:, -1] |= ~drop.any(dim=1)
    return N[~drop].view(len(N), -1)


def _not_positive(jitter: float) -> ValueError:
    return ValueError(
        f"noise: expected a covariance that is positive definite, got one that is not even with "
        f"{jitter:g} of the kernel's size added; raise the noise variance"
    )
