"""Each point from its nearest predecessors, under R = K̂ - L Lᵀ: weights and what is left.

w_i = R_NN⁻¹ R_Ni,  v_i = R_ii - R_iN w_i,  N = N(i),

and row i of U L, (L_i - w_iᵀ L_N) / sqrt(v_i), for which the rows of L are at hand then.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megagp.covariance import Covariance
from megagp.engines import NativeEngine
from megagp.engines.native import VECCHIA_MOST, vecchia_weights
from megagp.kernels import evaluate_batch
from megagp.preconditioners.pivoted_cholesky import pieces

# Neighbours whose rows of L are gathered at once.
GATHERED = 6144
# What is left of a variance is at least the noise; rounding may say less, but not below this.
LEAST = 0.5


@torch.no_grad()
def whiten(
    covariance: Covariance, L: Tensor, nearest: NDArray[np.int64], points: NDArray[np.int64]
) -> tuple[Tensor, Tensor]:
    """w (rows x m) and v (rows) of `points`; their rows of L become those of U L.

    nearest: n x m predecessors, -1 for none. Of those, the ones among `points` come before.
    From last to first, so that nothing is overwritten that is still needed.
    """
    operator, m = covariance.operator, nearest.shape[1]
    if m <= VECCHIA_MOST:
        native = NativeEngine().supports(operator.kernel, operator.X, None, torch.float64)
        if native.ok:
            return vecchia_weights(
                operator.kernel, operator.X, covariance.noise, L, nearest, points, LEAST
            )
    w = torch.zeros(len(points), m, dtype=torch.float64)
    v = torch.zeros(len(points), dtype=torch.float64)
    N = torch.from_numpy(nearest)
    for some in reversed(list(pieces(slice(0, len(points)), max(1, GATHERED // max(1, m))))):
        rows = torch.from_numpy(points[some])
        w[some], v[some] = predict_rows(covariance, L, rows, N[rows])
        foretold = (w[some, None] @ L[N[rows].clamp(min=0)].double())[:, 0]
        L[rows] = ((L[rows] - foretold) * v[some, None].rsqrt()).to(L.dtype)
    return w, v


def predict_rows(
    covariance: Covariance, L: Tensor, rows: Tensor, N: Tensor
) -> tuple[Tensor, Tensor]:
    """w and v of these rows, given their predecessors N (c x m; -1 for none)."""
    operator, noise = covariance.operator, covariance.noise
    kernel = operator.kernel.on("cpu", torch.float64)
    there = N >= 0
    N = N.clamp(min=0)
    X = operator.X
    L_i, L_N = L[rows], L.index_select(0, N.reshape(-1)).view(*N.shape, L.shape[1])
    total = kernel.diagonal(X[rows]) + noise[rows] - L_i.square().sum(1)
    v = total.clone()
    if not N.shape[1]:
        return v.new_zeros(N.shape), v.maximum(LEAST * noise[rows])
    R = evaluate_batch(kernel, X[N], X[N]) - L_N @ L_N.mT
    c = evaluate_batch(kernel, X[rows][:, None], X[N])[:, 0] - (L_N @ L_i[:, :, None])[:, :, 0]
    # Where there is no predecessor: an independent one with variance 1.
    R *= there[:, :, None] & there[:, None, :]
    R.diagonal(dim1=1, dim2=2).add_(torch.where(there, noise[N], 1.0))
    c = torch.where(there, c, 0.0)
    C, failed = torch.linalg.cholesky_ex(R.double())
    w = torch.cholesky_solve(c[:, :, None], C)[:, :, 0]
    # Rounding has spoilt R: such points stay alone.
    spoilt = (failed > 0) | ~w.isfinite().all(1)
    w[spoilt] = 0.0
    v = total - (w * c).sum(1)
    return w, v.maximum(LEAST * noise[rows])
