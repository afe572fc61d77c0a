"""What not knowing the coefficients β of the mean adds to variances that rest on all points.

uᵀ T u,  u = h(x) - Gᵀ k(X, x),  G = K̂⁻¹ H,  T = (Hᵀ G)⁻¹.

G comes from a solve that leaves R = H - K̂ G, so u is off by Rᵀ w, w = K̂⁻¹ k(X, x), and the root of
uᵀ T u by that of wᵀ R T Rᵀ w at most. The prediction wᵀ y has noise of the variance wᵀ N w,
N = diag(noise), which is a part of the latent variance s². So, with e = tr(T Rᵀ N⁻¹ R),

    (uᵀ T u)^½ <= (ûᵀ T û)^½ + (e s²)^½    for the û that was found.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from megagp.covariance import Covariance
from megagp.likelihood import generalised_least_squares
from megagp.solvers import ConvergenceWarning, Product, solve

# e, at most: more is told, if the solve does not come down to it.
EXCESS = 1e-3
# And in any case residuals of no more than this, which zero does not meet.
MOST_RTOL = 0.1


class TrendVariance:
    """G, solved for until e is at most EXCESS, and what it says of variances.

    H: n x q. weights: what is known of G, to start from. precondition: P⁻¹.
    """

    def __init__(
        self,
        covariance: Covariance,
        H: Tensor,
        weights: Tensor,
        precondition: Product,
        max_iter: int,
    ) -> None:
        # hᵀ K̂⁻¹ h from below; a start that says nothing of it is none.
        known = (weights * (2 * H - covariance.precise().matmul(weights))).sum(dim=0)
        start = torch.where(known > 0, weights, 0.0)
        # If only one point were known, T would be this.
        most = (covariance.operator.diagonal() + covariance.noise).mean()
        most = most / H.square().mean(dim=0).clamp(min=1e-300)
        T = torch.where(known > 0, 1 / known, most).minimum(most)
        # With M = Rᵀ N⁻¹ R, tr(T M) <= (Σ (T_jj M_jj)^½)²: each of q terms may be e / q².
        largest = (EXCESS * covariance.noise.median() / (H.shape[1] ** 2 * T)).sqrt()
        rtol = (largest / H.norm(dim=0).clamp(min=1e-300)).clamp(max=MOST_RTOL)
        found = solve(covariance, H, precondition, rtol=rtol, max_iter=max_iter, x0=start)
        assert found.R is not None
        self.G = found.x
        nothing = H[:, :0]
        self.T = generalised_least_squares(H, nothing, found.x, nothing, found.R).covariance
        M = found.R.T @ (found.R / covariance.noise[:, None])
        self.excess = max(0.0, float((self.T * M).sum()))
        if not found.converged:
            warnings.warn(
                f"The variance due to the mean is an upper bound only: up to "
                f"{100 * self.excess:.2g} % of the variance of the function is added to it. "
                f"{found.worst.value}",
                ConvergenceWarning,
                stacklevel=2,
            )

    def of(self, U: Tensor, latent: Tensor) -> Tensor:
        """What β adds to latent variances (t), from above; U: t x q, u as it was found."""
        found = ((U @ self.T) * U).sum(dim=1).clamp(min=0.0)
        return (found.sqrt() + (self.excess * latent).sqrt()).square()
