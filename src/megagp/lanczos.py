"""Stochastic Lanczos quadrature: a log-determinant from the coefficients of CG."""

from __future__ import annotations

import torch
from torch import Tensor

from megagp.solvers.result import Coefficients


def log_quadratic_forms(coefficients: Coefficients, columns: slice) -> Tensor:
    """zᵀ P^-½ log(P^-½ K̂ P^-½) P^-½ z for each of these columns z of a PCG from zero.

    = (zᵀ P⁻¹ z) e₁ᵀ log(T) e₁, with T the Lanczos matrix of the column:
    T[j, j] = 1 / α_j + β_{j-1} / α_{j-1},  T[j, j+1] = sqrt(β_j) / α_j.
    """
    alpha, beta = coefficients.alpha[:, columns], coefficients.beta[:, columns]
    forms = [_form(a, b) for a, b in zip(alpha.T, beta.T, strict=True)]
    return coefficients.start[columns] * torch.tensor(forms, dtype=torch.float64)


def _form(alpha: Tensor, beta: Tensor) -> float:
    """e₁ᵀ log(T) e₁ by the eigenvalues of T and the first row of its eigenvectors."""
    steps = int((alpha.isfinite() & (alpha > 0)).cumprod(0).sum())
    if steps == 0:
        return 0.0  # z was 0, or solved at the start: T = 1
    a, b = alpha[:steps], beta[: steps - 1].clamp(min=0.0)
    diagonal = 1 / a
    diagonal[1:] += b / a[:-1]
    off = b.sqrt() / a[:-1]
    T = torch.diag(diagonal) + torch.diag(off, 1) + torch.diag(off, -1)
    eigenvalues, vectors = torch.linalg.eigh(T)
    # T is positive definite; roundoff may say otherwise when CG has converged fully.
    return float((vectors[0] ** 2 * eigenvalues.clamp(min=1e-300).log()).sum())
