"""Many small blocks of K at once."""

from __future__ import annotations

import torch
from torch import Tensor

from megagp.kernels.composite import Composite
from megagp.kernels.constant import Constant
from megagp.kernels.kernel import Kernel
from megagp.kernels.linear import Linear
from megagp.kernels.stationary import Stationary


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
