"""Σ G * ∂K for a dense weight G: the gradient of whatever depends on K through G."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megagp.kernels.kernel import Kernel
from megagp.kernels.stationary import Stationary


@torch.no_grad()
def contract(kernel: Kernel, X: Tensor, G: Tensor) -> dict[str, Tensor]:
    """The derivative of Σ_ij G_ij k(x_i, x_j) by each hyperparameter that is not frozen.

    X: n x d; G: n x n, symmetric.
    """
    values = {
        name: kernel.values()[name].detach().clone().requires_grad_()
        for name, h in kernel.hyperparameters().items()
        if not h.frozen
    }
    if not values:
        return {}
    bound = kernel.bind(values)
    if isinstance(bound, Stationary) and _by_distance_alone(type(bound)):
        return _stationary(bound, X, G, values)
    with torch.enable_grad():
        total = (G * bound.evaluate(X, X)).sum()
        found = torch.autograd.grad(total, list(values.values()), allow_unused=True)
    return _named(values, found)


def _stationary(
    kernel: Stationary, X: Tensor, G: Tensor, values: dict[str, Tensor]
) -> dict[str, Tensor]:
    """By way of r, since the derivative of r by lengthscales needs no n x n x d operations.

    With f = x / ℓ and r² = Σ_d (f_id - f_jd)²: ∂r/∂ℓ_d = -(f_id - f_jd)² / (r ℓ_d). So with
    M = G * ∂k/∂r / r, symmetric with row sums m,

        Σ_ij M_ij (f_id - f_jd)² = 2 Σ_i f_id (m_i f_id - (M f_d)_i).
    """
    f = kernel.features(X)
    r = torch.cdist(f, f, compute_mode="donot_use_mm_for_euclid_dist")
    lengthscale = values.pop("lengthscale", None)
    with torch.enable_grad():
        r.requires_grad_()
        # As a sum: with G as an argument, torch would import sympy, for half a second.
        total = (G * (kernel.outputscale * kernel.radial(r))).sum()
        by_r, *found = torch.autograd.grad(total, [r, *values.values()], allow_unused=True)
    gradient = _named(values, found)
    if lengthscale is not None:
        M = torch.where(r > 0, by_r / r, 0.0)
        f = f - f.mean(0)
        squares = 2 * (f * (M.sum(1)[:, None] * f - M @ f)).sum(0)
        by_dimension = -squares / lengthscale.detach()
        gradient["lengthscale"] = by_dimension if lengthscale.ndim else by_dimension.sum()
    return gradient


def _by_distance_alone(kind: type[Stationary]) -> bool:
    """Whether a kernel, a user's own perhaps, has left the formula of Stationary as it is."""
    return kind.evaluate is Stationary.evaluate and kind.features is Stationary.features


def _named(values: dict[str, Tensor], found: Sequence[Tensor | None]) -> dict[str, Tensor]:
    return {
        name: torch.zeros_like(value) if g is None else g
        for (name, value), g in zip(values.items(), found, strict=True)
    }
