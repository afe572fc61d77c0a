"""Which points a low-rank approximation of K is built on.

Each rank has its own rows of the factor; rows of the few points in question, and what is left of
the diagonal, go to all. Rank 0 decides.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megagp.distributed import Ranks
from megagp.operator import KernelOperator

# Proposals per pass over the points: wide enough for BLAS, few enough to be accepted.
BLOCK = 128
# What is left of a point's variance, as a share, when more pivots would be roundoff: of float64
# in greedy pivoting, of float32 and the ridge in random pivoting.
EXHAUSTED, EXHAUSTED_FLOAT32 = 1e-9, 3e-6


def greedy_pivots(operator: KernelOperator, rank: int) -> Tensor:
    """The point with the largest residual variance, `rank` times (the paper's choice).

    Pivoted Cholesky: i = argmax d; l = (K[:, i] - L Lᵀ[:, i]) / sqrt(d_i); d -= l².
    Cost O(n k²) in k passes that are bound by memory; for small ranks.
    """
    operator, ranks = operator.astype("float64"), operator.ranks
    n = operator.shape[0]
    own = ranks.rows(n)
    d = operator.diagonal()
    smallest = EXHAUSTED * float(d.mean())
    d = d[own]
    L = torch.zeros(len(d), min(rank, n), dtype=torch.float64)
    pivots: list[int] = []
    for j in range(min(rank, n)):
        i, left = _largest(d, own, ranks)
        if left <= smallest:
            break
        row = _at(L[:, :j], torch.tensor([i]), own, ranks)[0]
        column = operator.block(own, [i])[:, 0] - L[:, :j] @ row
        L[:, j] = column / left**0.5
        d -= L[:, j] ** 2
        if own.start <= i < own.stop:
            d[i - own.start] = 0.0
        pivots.append(i)
    return torch.tensor(pivots, dtype=torch.long)


def random_pivots(operator: KernelOperator, rank: int, rng: np.random.Generator) -> Tensor:
    """Points drawn in proportion to their residual variance, a block at a time.

    Proposals come from the residual diagonal d of the last pass; each is accepted with
    probability d_now / d_proposed, which makes the draw that of one point at a time
    (accelerated randomly pivoted Cholesky: Epperly, Tropp and Webber 2024).
    Cost O(n k²) in rank / BLOCK passes of matrix products; memory n k in float32; both
    divided by the ranks.
    """
    n, ranks = operator.shape[0], operator.ranks
    rank = min(rank, n)
    own = ranks.rows(n)
    d = operator.diagonal()
    smallest = EXHAUSTED_FLOAT32 * (d + d.mean())
    F = torch.zeros(own.stop - own.start, rank, dtype=torch.float32)
    pivots: list[int] = []
    while len(pivots) < rank and bool((d > 0).any()):
        j = len(pivots)
        proposed = _decided(_propose(d.numpy(), rng), ranks)
        # (K - F Fᵀ)[own, proposed], and the same at the proposed points themselves
        G = operator.block(own, proposed).float()
        G.addmm_(F[:, :j], _at(F[:, :j], proposed, own, ranks).T, alpha=-1)
        S = _at(G, proposed, own, ranks).double()
        S = 0.5 * (S + S.T)
        least = smallest[proposed].numpy()
        accepted = _decided(_accept(S.numpy(), d[proposed].numpy(), least, rng), ranks)
        accepted = accepted[: rank - j]
        if not len(accepted):
            # d is too high by roundoff: with what G says, the next block has a pivot or d is 0.
            d[proposed] = _above(S.diagonal(), smallest[proposed])
            continue
        chosen = proposed[accepted]
        C = _factor(S[accepted][:, accepted])
        new = torch.linalg.solve_triangular(C.float(), G[:, accepted].T, upper=False).T
        F[:, j : j + len(chosen)] = new
        d = _above(d - ranks.gather(new.square().sum(1), n), smallest)
        d[chosen] = 0.0
        pivots.extend(chosen.tolist())
    return torch.tensor(pivots, dtype=torch.long)


def _at(part: Tensor, index: Tensor, own: slice, ranks: Ranks) -> Tensor:
    """Rows `index` of a matrix of which each rank has the rows `own`."""
    mine = (own.start <= index) & (index < own.stop)
    rows = part.new_zeros(len(index), part.shape[1])
    rows[mine] = part[index[mine] - own.start]
    return ranks.sum(rows)


def _largest(d: Tensor, own: slice, ranks: Ranks) -> tuple[int, float]:
    """Where the largest entry of d is, and what; the first, if several are as large."""
    found = d.new_zeros(ranks.size, 2)
    found[ranks.rank, 0] = -torch.inf
    if len(d):
        found[ranks.rank] = torch.tensor([d.max(), own.start + d.argmax()], dtype=d.dtype)
    found = ranks.sum(found)
    top = int(found[:, 0].argmax())
    return int(found[top, 1]), float(found[top, 0])


def _decided(index: NDArray[np.int64], ranks: Ranks) -> Tensor:
    """What rank 0 chose, of at most BLOCK."""
    padded = torch.full((BLOCK,), -1)
    padded[: len(index)] = torch.from_numpy(index)
    padded = ranks.agree(padded)
    return padded[padded >= 0]


def _above(d: Tensor, smallest: Tensor) -> Tensor:
    """d, and 0 where it is no more than roundoff."""
    return torch.where(d > smallest, d, 0.0)


def _propose(d: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Up to BLOCK distinct indices, drawn in proportion to d."""
    cumulative = np.cumsum(d)
    draws = np.searchsorted(cumulative, rng.random(BLOCK) * cumulative[-1], side="right")
    draws = draws[draws < len(d)]
    _, first = np.unique(draws, return_index=True)
    distinct: NDArray[np.int64] = draws[np.sort(first)]
    return distinct


def _accept(
    S: NDArray[np.float64],
    d: NDArray[np.float64],
    smallest: NDArray[np.float64],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Which proposals to keep: Cholesky of their residual S, with a coin at each pivot.

    None at which no more than roundoff is left: with two points that are nearly the same S would
    not be positive definite.
    """
    A = S.copy()
    kept = []
    coins = rng.random(len(d))
    for i in range(len(d)):
        if coins[i] * d[i] >= A[i, i] or A[i, i] <= smallest[i]:
            continue
        kept.append(i)
        A[i + 1 :, i + 1 :] -= np.outer(A[i + 1 :, i], A[i, i + 1 :]) / A[i, i]
    return np.array(kept, dtype=np.int64)


def _factor(S: Tensor) -> Tensor:
    """Cholesky factor of an accepted block; float32 roundoff is covered by a small ridge."""
    ridge = 1e-6 * S.diagonal().mean() * torch.eye(len(S), dtype=S.dtype)
    C: Tensor = torch.linalg.cholesky(S + ridge)
    return C
