"""The dense way, for n where n³ is nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from megagp.covariance import Covariance
from megagp.solvers.result import SolveResult, Status, length, relative


class Cholesky:
    """K̂ = C Cᵀ in float64: n³/3 operations once, n² t per solve, memory 16 n² bytes."""

    def __init__(self, covariance: Covariance) -> None:
        operator = covariance.operator.astype("float64")
        K = operator.block()
        self.K_hat = 0.5 * (K + K.T)
        self.K_hat.diagonal().add_(covariance.noise)
        C, info = torch.linalg.cholesky_ex(self.K_hat)
        if int(info):
            raise ValueError(
                f"noise_variance: expected K + noise to be positive definite, got a failed "
                f"pivot at row {int(info)} with noise {float(covariance.noise.min()):.2g}; raise "
                "the noise variance (noise_floor), or remove duplicate rows"
            )
        self.C = C

    def solve(self, B: Tensor) -> SolveResult:
        """K̂⁻¹ B with the residual that roundoff left."""
        x = torch.cholesky_solve(B, self.C)
        residual = relative(length(B - self.K_hat @ x), length(B))
        t = B.shape[1]
        zero = torch.zeros(t, dtype=torch.long)
        return SolveResult(x, (Status.CONVERGED,) * t, zero, residual)

    def logdet(self) -> float:
        return float(2 * self.C.diagonal().log().sum())

    def inverse(self) -> Tensor:
        """K̂⁻¹ = C⁻ᵀ C⁻¹, by LAPACK's potri: half the work of a triangular solve and a product."""
        return torch.cholesky_inverse(self.C)
