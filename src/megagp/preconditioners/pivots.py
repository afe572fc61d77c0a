"""Which points a low-rank approximation of K is built on."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
    operator = operator.astype("float64")
    n = operator.shape[0]
    d = operator.diagonal()
    smallest = EXHAUSTED * float(d.mean())
    L = torch.zeros(n, min(rank, n), dtype=torch.float64)
    pivots: list[int] = []
    for j in range(min(rank, n)):
        i = int(d.argmax())
        if d[i] <= smallest:
            break
        column = operator.block(None, [i])[:, 0] - L[:, :j] @ L[i, :j]
        L[:, j] = column / d[i].sqrt()
        d -= L[:, j] ** 2
        d[i] = 0.0
        pivots.append(i)
    return torch.tensor(pivots, dtype=torch.long)


def random_pivots(operator: KernelOperator, rank: int, rng: np.random.Generator) -> Tensor:
    """Points drawn in proportion to their residual variance, a block at a time.

    Proposals come from the residual diagonal d of the last pass; each is accepted with
    probability d_now / d_proposed, which makes the draw that of one point at a time
    (accelerated randomly pivoted Cholesky: Epperly, Tropp and Webber 2024).
    Cost O(n k²) in rank / BLOCK passes of matrix products; memory n k in float32.
    """
    n = operator.shape[0]
    rank = min(rank, n)
    d = operator.diagonal()
    smallest = EXHAUSTED_FLOAT32 * (d + d.mean())
    F = torch.zeros(n, rank, dtype=torch.float32)
    pivots: list[int] = []
    while len(pivots) < rank and bool((d > 0).any()):
        j = len(pivots)
        proposed = _propose(d.numpy(), rng)
        G = _residual(operator, proposed, F[:, :j])
        accepted = _accept(G[proposed].double().numpy(), d.numpy()[proposed], rng)[: rank - j]
        if not len(accepted):
            # d is too high by roundoff: with what G says, the next block has a pivot or d is 0.
            d[proposed] = _above(G[proposed].diagonal().double(), smallest[proposed])
            continue
        chosen = proposed[accepted]
        G = G[:, accepted]
        C = _factor(G[chosen].double())
        new = torch.linalg.solve_triangular(C.float(), G.T, upper=False).T
        F[:, j : j + len(chosen)] = new
        d = _above(d - new.square().sum(1), smallest)
        d[chosen] = 0.0
        pivots.extend(chosen.tolist())
    return torch.tensor(pivots, dtype=torch.long)


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


def _residual(operator: KernelOperator, columns: NDArray[np.int64], F: Tensor) -> Tensor:
    """(K - F Fᵀ)[:, columns] in float32."""
    K = operator.block(None, columns).float()
    return K.addmm_(F, F[columns].T, alpha=-1)


def _accept(
    G: NDArray[np.float64], d: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Which proposals to keep: Cholesky of their residual G, with a coin at each pivot."""
    A = G.copy()
    kept = []
    coins = rng.random(len(d))
    for i in range(len(d)):
        if coins[i] * d[i] >= A[i, i] or A[i, i] <= 1e-5 * d[i]:
            continue
        kept.append(i)
        A[i + 1 :, i + 1 :] -= np.outer(A[i + 1 :, i], A[i, i + 1 :]) / A[i, i]
    return np.array(kept, dtype=np.int64)


def _factor(G: Tensor) -> Tensor:
    """Cholesky factor of an accepted block; float32 roundoff is covered by a small ridge."""
    ridge = 1e-6 * G.diagonal().mean() * torch.eye(len(G), dtype=G.dtype)
    C: Tensor = torch.linalg.cholesky(0.5 * (G + G.T) + ridge)
    return C
