"""Adam (Kingma & Ba 2015).

    m ← β₁ m + (1 - β₁) g,  v ← β₂ v + (1 - β₂) g²,
    θ ← θ - rate m / (1 - β₁ᵗ) / (√(v / (1 - β₂ᵗ)) + ε)

Not torch.optim's: the first step of that imports torch's compiler, which takes seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

BETAS, EPSILON = (0.9, 0.999), 1e-8


class Adam:
    """Moves tensors, in place, against their gradients. `rate` may be changed between steps."""

    def __init__(self, tensors: Sequence[Tensor], rate: float) -> None:
        self.rate = rate
        self._tensors = list(tensors)
        self._first = [torch.zeros_like(T) for T in tensors]
        self._second = [torch.zeros_like(T) for T in tensors]
        self._steps = 0

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """One step; a gradient for each tensor."""
        self._steps += 1
        first, second = (1 - beta**self._steps for beta in BETAS)
        for T, m, v, g in zip(self._tensors, self._first, self._second, gradients, strict=True):
            m.lerp_(g, 1 - BETAS[0])
            v.mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
            T.addcdiv_(m, v.sqrt().div_(math.sqrt(second)).add_(EPSILON), value=-self.rate / first)
