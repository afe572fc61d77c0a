"""Where lengthscales start when nothing is known of them."""

from __future__ import annotations

import torch
from torch import Tensor

from megagp.training.recipe import START

# With neighbours this many lengthscales apart every observation explains itself alone: the
# likelihood is flat there, and no step leads away.
FAR = 2.0


def start_lengthscale(X: Tensor) -> float:
    """1 for whitened X (n x d), or how far typical neighbours are apart if that is far.

    Of START points, as many as training begins with; spread over X, so the same for every seed.
    """
    some = X[:: max(1, len(X) // START)][:START]
    if len(some) < 2:
        return 1.0
    D = torch.cdist(some, some)
    D.fill_diagonal_(torch.inf)
    apart = float(D.amin(1).median())
    return apart if apart > FAR else 1.0
