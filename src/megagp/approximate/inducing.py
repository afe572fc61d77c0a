"""Where inducing points start: a subset of the data, centres of clusters, or pivots."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor

from megagp.kernels import Kernel
from megagp.operator import KernelOperator
from megagp.preconditioners.pivots import random_pivots

INDUCING = ("kmeans", "pivots", "random")
# Rows that are looked at: at least so many, or this many for each inducing point.
ROWS, ROWS_EACH = 20_000, 10


def choose_inducing(X: Tensor, kernel: Kernel, m: int, method: str, seed: int) -> Tensor:
    """Up to m distinct points, m x d, for X (n x d).

    "kmeans": centres of clusters; "pivots": rows drawn in proportion to the variance that those
    before them leave (randomly pivoted Cholesky); "random": rows.
    """
    rng = np.random.default_rng(seed)
    count = len(X) if method == "random" else min(len(X), max(ROWS, ROWS_EACH * m))
    rows = np.unique(X[rng.permutation(len(X))[:count]].numpy(), axis=0)
    if len(rows) <= m:
        return torch.from_numpy(rows)
    if method == "kmeans":
        state = int(rng.integers(2**31 - 1))
        found = MiniBatchKMeans(
            m, n_init=1, max_iter=20, batch_size=4096, init="random", random_state=state
        ).fit(rows)
        return torch.from_numpy(np.unique(found.cluster_centers_, axis=0))
    if method == "pivots":
        points = torch.from_numpy(rows)
        return points[random_pivots(KernelOperator(points, kernel), m, rng)]
    return torch.from_numpy(rows[rng.choice(len(rows), m, replace=False)])
