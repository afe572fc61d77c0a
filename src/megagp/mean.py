"""The mean function H β: what its columns are; its coefficients follow from the covariance."""

from __future__ import annotations

import torch
from torch import Tensor

MEANS = ("zero", "constant", "linear")


def basis(X: Tensor, mean: str) -> Tensor:
    """H: n x 0, ones (n x 1), or ones and the columns of X (n x (1 + d))."""
    one = X.new_ones(len(X), 1)
    if mean == "zero":
        return one[:, :0]
    if mean == "constant":
        return one
    if mean == "linear":
        return torch.cat([one, X], dim=1)
    raise ValueError(f"mean: expected one of {', '.join(map(repr, MEANS))}, got {mean!r}")
