"""The columns of H."""

import pytest
import torch

from megagp.mean import MEANS, basis

X = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=torch.float64)

COLUMNS = {
    "zero": [[], [], []],
    "constant": [[1], [1], [1]],
    "linear": [[1, 1, 2], [1, 3, 4], [1, 5, 6]],
}


@pytest.mark.parametrize("mean", MEANS)
def test_columns(mean):
    H = basis(X, mean)
    assert H.dtype == torch.float64
    assert H.tolist() == COLUMNS[mean]
    assert basis(X[:1], mean).tolist() == COLUMNS[mean][:1]


def test_unknown():
    with pytest.raises(ValueError, match=r"mean: expected one of 'zero', .* got 'quadratic'"):
        basis(X, "quadratic")
