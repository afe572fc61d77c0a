"""Cells: every point in one of them, sizes about equal, new points to the nearest centre."""

import numpy as np
import pytest
import torch

from megagp.posterior.cells import Cells


def points(n, d=3, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)))


@pytest.mark.parametrize(("n", "size"), [(1, 5), (7, 7), (8, 7), (100, 1), (1000, 33)])
def test_each_point_is_in_one_cell(n, size):
    cells = Cells(points(n), size)
    assert sorted(torch.cat(cells.members).tolist()) == list(range(n))
    sizes = [len(rows) for rows in cells.members]
    assert len(cells) == -(-n // size)
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("d", [1, 3, 20])
def test_new_points_go_to_the_nearest_centre(d):
    X, Z = points(500, d), points(60, d, 1)
    cells = Cells(X, 40)
    for rows, centre in zip(cells.members, cells.centres, strict=True):
        np.testing.assert_allclose(centre, X[rows].mean(0), rtol=1e-12)
    D = np.linalg.norm(Z.numpy()[:, None] - cells.centres.numpy()[None], axis=2)
    np.testing.assert_array_equal(cells.of(Z), D.argmin(1))


def test_cells_are_compact():
    """Points on a line: every cell is a stretch of it."""
    X = torch.stack([torch.arange(100.0), torch.zeros(100)], dim=1).double()
    X = X[torch.randperm(100, generator=torch.Generator().manual_seed(0))]
    stretches = sorted((float(X[r, 0].min()), float(X[r, 0].max())) for r in Cells(X, 25).members)
    assert stretches == [(0, 24), (25, 49), (50, 74), (75, 99)]


def test_equal_points_are_divided_too():
    cells = Cells(torch.zeros(10, 2, dtype=torch.float64), 3)
    assert sorted(torch.cat(cells.members).tolist()) == list(range(10))
