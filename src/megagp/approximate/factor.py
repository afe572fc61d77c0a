"""Cholesky factors of K(Z, Z), with as much jitter as they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from megagp.approximate.triangular import congruent, inverse, inverse_cholesky
from megagp.distributed import ALONE, Ranks

# Factors by which jitter is raised until there is a factor.
RAISES = (1.0, 10.0, 100.0, 1000.0, 1e4)


@dataclass(frozen=True)
class Factor:
    """L Lᵀ = K(Z, Z) + jitter I; share: jitter / mean of the diagonal."""

    L: Tensor
    share: float
    jitter: float

    @cached_property
    def W(self) -> Tensor:
        """L⁻¹: products with it are faster than solves with L."""
        return inverse(self.L)

    @property
    def magnification(self) -> float:
        """By L⁻¹, of the variance that rounding has in K(Z, x): ‖L⁻¹‖² times the mean of k(z, z).

        Between m, for points far apart, and about m / share.
        """
        return float(self.W.square().sum() * self.L.square().sum()) / len(self.L)

    def solve(self, B: Tensor) -> Tensor:
        """L⁻¹ B."""
        found: Tensor = torch.linalg.solve_triangular(self.L, B, upper=False)
        return found

    def solve_transposed(self, B: Tensor) -> Tensor:
        """L⁻ᵀ B."""
        found: Tensor = torch.linalg.solve_triangular(self.L.T, B, upper=True)
        return found

    def pull(self, M: Tensor) -> Tensor:
        """L⁻ᵀ M L⁻¹ for symmetric M."""
        return congruent(self.W, M.tril())


def factorise(K: Tensor, share: float, ranks: Ranks = ALONE) -> Factor:
    """The factor of K with jitter of `share` of its mean diagonal, or the least more that works.

    Of several ranks the first one says how much: roundoff may differ from rank to rank.
    """

    def first() -> tuple[dict[str, float], dict[str, Tensor]]:
        found = _factor(K, share)
        return {"share": found.share, "jitter": found.jitter}, {"L": found.L}

    header, tensors = ranks.from_first(first)
    return Factor(tensors["L"], **header)


def inverse_factor(K: Tensor, share: float) -> tuple[Tensor, float]:
    """L⁻¹, and the share of jitter that it took."""
    W, share, _ = _jittered(K, share, inverse_cholesky)
    return W, share


def _factor(K: Tensor, share: float) -> Factor:
    return Factor(*_jittered(K, share, _cholesky))


def _cholesky(K: Tensor) -> Tensor | None:
    L: Tensor
    L, info = torch.linalg.cholesky_ex(K)
    return L if int(info) == 0 and bool(L.diagonal().isfinite().all()) else None


def _jittered(
    K: Tensor, share: float, attempt: Callable[[Tensor], Tensor | None]
) -> tuple[Tensor, float, float]:
    """What `attempt` makes of K with the least jitter that it succeeds with; its share, and it."""
    mean = float(K.diagonal().mean())
    for factor in RAISES:
        jitter = factor * share * mean
        C = K.clone()
        C.diagonal().add_(jitter)
        found = attempt(C)
        if found is not None:
            return found, factor * share, jitter
    raise ValueError(
        f"jitter: expected K(Z, Z) to be positive definite with up to {RAISES[-1] * share:.2g} of "
        "its diagonal added, got a failed factorisation; raise jitter, or check the kernel"
    )
