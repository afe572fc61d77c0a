"""Equal rows, found by keys, against comparing all with all."""

import numpy as np
import pytest
import torch

from megagp import equal_rows
from megagp.equal_rows import EqualRows


@pytest.mark.parametrize("keys", ["own", "one for all"])
@pytest.mark.parametrize(("n", "d"), [(1, 1), (60, 1), (60, 3)])
def test_the_first_equal_row_is_found(monkeypatch, n, d, keys):
    if keys == "one for all":
        monkeypatch.setattr(equal_rows, "_odd_numbers", lambda count: np.zeros(count, np.uint64))
    rng = np.random.default_rng(0)
    X = rng.integers(4, size=(n, d)).astype(float)
    X_new = np.concatenate([X[:7], rng.integers(5, size=(40, d)), np.full((1, d), 0.5)])
    equal = (X_new[:, None] == X).all(2)
    found = EqualRows(torch.from_numpy(X)).find(torch.from_numpy(X_new))
    assert found.tolist() == np.where(equal.any(1), equal.argmax(1), -1).tolist()


def test_to_the_last_bit_but_for_the_sign_of_zero():
    X = torch.tensor([[1.0, 0.0], [np.nextafter(1.0, 2.0), 0.0]], dtype=torch.float64)
    X_new = torch.tensor([[1.0, -0.0], [np.nextafter(1.0, 0.0), 0.0]], dtype=torch.float64)
    assert EqualRows(X).find(X_new).tolist() == [0, -1]
    assert EqualRows(X).find(X_new[:0]).tolist() == []
