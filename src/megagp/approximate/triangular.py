"""Products with triangular matrices, and triangular products, by halves.

    [T₁₁  0 ] [B₁]   [T₁₁ B₁         ]
    [T₂₁ T₂₂] [B₂] = [T₂₁ B₁ + T₂₂ B₂]

The blocks that are zero, or not wanted, are left out until what is left is LEAF wide: little more
than half the work, all of it products of large matrices. Those run at the speed of the machine,
which solving with a triangular matrix does not.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAF = 128


def triangular_product(T: Tensor, B: Tensor, upper: bool, out: Tensor | None = None) -> Tensor:
    """T B for triangular T (m x m); its other triangle must be zero."""
    found = torch.empty(len(T), B.shape[1], dtype=B.dtype) if out is None else out
    _product(T, B, upper, found)
    return found


def lower_product(A: Tensor, B: Tensor) -> Tensor:
    """The lower triangle of A B, m x m."""
    out = torch.zeros(len(A), len(A), dtype=A.dtype)
    _lower(A, B, out)
    return out


def inverse(L: Tensor) -> Tensor:
    """L⁻¹ for lower triangular L."""
    out = torch.zeros(L.shape, dtype=L.dtype)
    _inverse(L, out)
    return out


def mirrored(L: Tensor) -> Tensor:
    """The symmetric matrix with this lower triangle; above its diagonal L must be zero."""
    full = L + L.T
    full.diagonal().mul_(0.5)
    return full


def _product(T: Tensor, B: Tensor, upper: bool, out: Tensor) -> None:
    if len(T) <= LEAF:
        torch.mm(T, B, out=out)
        return
    one, two = _halves(len(T))
    _product(T[one, one], B[one], upper, out[one])
    _product(T[two, two], B[two], upper, out[two])
    if upper:
        out[one].addmm_(T[one, two], B[two])
    else:
        out[two].addmm_(T[two, one], B[one])


def _lower(A: Tensor, B: Tensor, out: Tensor) -> None:
    if len(A) <= LEAF:
        out.copy_((A @ B).tril_())
        return
    one, two = _halves(len(A))
    _lower(A[one], B[:, one], out[one, one])
    _lower(A[two], B[:, two], out[two, two])
    torch.mm(A[two], B[:, one], out=out[two, one])


def _inverse(L: Tensor, out: Tensor) -> None:
    """L⁻¹₂₁ = -L₂₂⁻¹ L₂₁ L₁₁⁻¹."""
    if len(L) <= LEAF:
        eye = torch.eye(len(L), dtype=L.dtype)
        out.copy_(torch.linalg.solve_triangular(L, eye, upper=False))
        return
    one, two = _halves(len(L))
    _inverse(L[one, one], out[one, one])
    _inverse(L[two, two], out[two, two])
    right = triangular_product(out[one, one].T, L[two, one].T, upper=True).T
    triangular_product(out[two, two], right, upper=False, out=out[two, one])
    out[two, one].neg_()


def _halves(m: int) -> tuple[slice, slice]:
    return slice(0, m // 2), slice(m // 2, m)
