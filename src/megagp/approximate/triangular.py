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


def gram(R: Tensor) -> Tensor:
    """Rᵀ R for lower triangular R, above whose diagonal there must be zeros."""
    out = torch.empty_like(R)
    _upper_lower(R.T, R, out)
    return out


def congruent(W: Tensor, M: Tensor) -> Tensor:
    """Wᵀ S W, symmetric, for lower triangular W and the symmetric S with lower triangle M.

    With half of S's diagonal in M, S = M + Mᵀ, and of Wᵀ M W both factors are triangular. M, above
    whose diagonal there must be zeros, is changed.
    """
    M.diagonal().mul_(0.5)
    half = torch.empty_like(M)
    _lower_lower(M, W, half)
    whole = torch.empty_like(M)
    _upper_lower(W.T, half, whole)
    return whole + whole.T


def inverse_cholesky(K: Tensor) -> Tensor | None:
    """L⁻¹ for K = L Lᵀ, or None where K is not positive definite.

    Of K the lower triangle is read, and used up.
    """
    out = torch.zeros(K.shape, dtype=K.dtype)
    return out if _inverse_cholesky(K, out) and bool(out.diagonal().isfinite().all()) else None


def inverse(L: Tensor) -> Tensor:
    """L⁻¹ for lower triangular L, above whose diagonal there must be zeros."""
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


def _lower_lower(A: Tensor, B: Tensor, out: Tensor) -> None:
    """The lower triangle of A B for two lower triangular matrices; blocks above are not set."""
    if len(A) <= LEAF:
        torch.mm(A, B, out=out)
        return
    one, two = _halves(len(A))
    _lower_lower(A[one, one], B[one, one], out[one, one])
    _lower_lower(A[two, two], B[two, two], out[two, two])
    _product(A[two, two], B[two, one], False, out[two, one])
    out[two, one].addmm_(A[two, one], B[one, one])


def _upper_lower(A: Tensor, B: Tensor, out: Tensor) -> None:
    """A B for upper triangular A and lower triangular B."""
    if len(A) <= LEAF:
        torch.mm(A, B, out=out)
        return
    one, two = _halves(len(A))
    _upper_lower(A[one, one], B[one, one], out[one, one])
    out[one, one].addmm_(A[one, two], B[two, one])
    _upper_lower(A[two, two], B[two, two], out[two, two])
    _product(A[two, two], B[two, one], True, out[two, one])
    _product(B[two, two].T, A[one, two].T, True, out[one, two].T)


def _inverse_cholesky(K: Tensor, out: Tensor) -> bool:
    """W = L⁻¹: with L₂₁ = K₂₁ W₁₁ᵀ and L₂₂ L₂₂ᵀ = K₂₂ - L₂₁ L₂₁ᵀ, W₂₁ = -W₂₂ L₂₁ W₁₁."""
    if len(K) <= LEAF:
        L, info = torch.linalg.cholesky_ex(K)
        eye = torch.eye(len(K), dtype=K.dtype)
        out.copy_(torch.linalg.solve_triangular(L, eye, upper=False))
        return int(info) == 0
    one, two = _halves(len(K))
    if not _inverse_cholesky(K[one, one], out[one, one]):
        return False
    L = triangular_product(out[one, one], K[two, one].T, upper=False).T
    _downdate(K[two, two], L)
    if not _inverse_cholesky(K[two, two], out[two, two]):
        return False
    right = triangular_product(out[one, one].T, L.T, upper=True).neg_().T
    triangular_product(out[two, two], right, upper=False, out=out[two, one])
    return True


def _inverse(L: Tensor, out: Tensor) -> None:
    """W₂₁ = -W₂₂ L₂₁ W₁₁."""
    if len(L) <= LEAF:
        eye = torch.eye(len(L), dtype=L.dtype)
        out.copy_(torch.linalg.solve_triangular(L, eye, upper=False))
        return
    one, two = _halves(len(L))
    _inverse(L[one, one], out[one, one])
    _inverse(L[two, two], out[two, two])
    right = triangular_product(out[one, one].T, L[two, one].T, upper=True).neg_().T
    triangular_product(out[two, two], right, upper=False, out=out[two, one])


def _downdate(K: Tensor, A: Tensor) -> None:
    """K -= A Aᵀ, of which the lower triangle is right."""
    if len(K) <= LEAF:
        K.addmm_(A, A.T, alpha=-1)
        return
    one, two = _halves(len(K))
    _downdate(K[one, one], A[one])
    _downdate(K[two, two], A[two])
    K[two, one].addmm_(A[two], A[one].T, alpha=-1)


def _halves(m: int) -> tuple[slice, slice]:
    return slice(0, m // 2), slice(m // 2, m)
