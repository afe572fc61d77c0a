"""Sparse rows against dense matrices."""

import numpy as np
import pytest
import torch

from megagp.engines import SparseRows


def matrix(rows, width, share=0.3, seed=0):
    """A sparse matrix, and the same as a dense one; some rows are empty."""
    rng = np.random.default_rng(seed)
    A = np.where(rng.random((rows, width)) < share, rng.normal(size=(rows, width)), 0.0)
    A[::7] = 0.0
    there = A != 0
    starts = np.concatenate([[0], np.cumsum(there.sum(1))])
    return SparseRows(starts, np.nonzero(there)[1].astype(np.int32), A[there], width), A


# The last has enough entries for threads.
@pytest.mark.parametrize(
    ("rows", "width", "t"), [(1, 1, 1), (40, 30, 3), (9, 50, 130), (1500, 700, 5)]
)
def test_times(rows, width, t):
    S, A = matrix(rows, width)
    X = torch.from_numpy(np.random.default_rng(1).normal(size=(width, t)))
    np.testing.assert_allclose(S.times(X).numpy(), A @ X.numpy(), rtol=1e-12, atol=1e-12)


def test_some_rows_and_their_transposition():
    S, A = matrix(60, 40)
    part = S.some(slice(13, 41))
    X, Y = (
        np.random.default_rng(1).normal(size=(40, 4)),
        np.random.default_rng(2).normal(size=(28, 4)),
    )
    np.testing.assert_allclose(part.times(torch.from_numpy(X)).numpy(), A[13:41] @ X, atol=1e-12)
    turned = part.transposed().times(torch.from_numpy(Y)).numpy()
    np.testing.assert_allclose(turned, A[13:41].T @ Y, atol=1e-12)


def test_any_number_of_threads_gives_the_same_bits():
    S, _ = matrix(3000, 500)
    X = torch.randn(500, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(S.times(X))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


@pytest.mark.parametrize("t", [1, 70])
def test_solve_in_an_order(t):
    rng = np.random.default_rng(0)
    n = 50
    order = rng.permutation(n)
    place = np.argsort(order)
    # Before itself in the order, then itself.
    columns = [[*np.flatnonzero((place < place[i]) & (rng.random(n) < 0.2)), i] for i in range(n)]
    A = np.zeros((n, n))
    for i, row in enumerate(columns):
        A[i, row] = rng.uniform(0.5, 1.5, len(row))
    starts = np.concatenate([[0], np.cumsum([len(row) for row in columns])])
    flat = np.concatenate(columns)
    values = A[np.repeat(np.arange(n), np.diff(starts)), flat]
    Z = torch.from_numpy(rng.normal(size=(n, t)))
    expected = np.linalg.solve(A, Z.numpy())
    SparseRows(starts, flat.astype(np.int32), values, n).solve(order, Z)
    np.testing.assert_allclose(Z.numpy(), expected, rtol=1e-9, atol=1e-9)


def test_wrong_shapes_are_refused():
    S, _ = matrix(6, 5)
    with pytest.raises(ValueError, match="X: expected a row"):
        S.times(torch.zeros(6, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match="columns: expected 0"):
        SparseRows(np.array([0, 1]), np.array([3], dtype=np.int32), np.ones(1), 3)
    with pytest.raises(ValueError, match="starts: expected rising"):
        SparseRows(np.array([0, 2, 1]), np.zeros(2, dtype=np.int32), np.ones(2), 3)
    swapped = SparseRows(np.array([0, 1, 2]), np.array([1, 0], dtype=np.int32), np.ones(2), 2)
    with pytest.raises(ValueError, match="rows: expected some"):
        swapped.solve(np.array([0, 2]), torch.zeros(2, 1, dtype=torch.float64))
    with pytest.raises(ValueError, match="diagonal last"):
        swapped.solve(np.arange(2), torch.zeros(2, 1, dtype=torch.float64))
