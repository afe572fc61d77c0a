"""Cells: every point in one of them, new points to the nearest centre, and what lies near."""

import numpy as np
import pytest
import torch

from megagp.neighbours import Neighbours
from megagp.posterior.cells import Cells


def points(n, d=3, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)))


@pytest.mark.parametrize(("n", "size"), [(1, 5), (7, 7), (8, 7), (100, 1), (1000, 33)])
def test_each_point_is_in_one_cell(n, size):
    cells = Cells(points(n), size)
    assert sorted(torch.cat(cells.members).tolist()) == list(range(n))
    assert len(cells) == -(-n // size)
    assert max(len(rows) for rows in cells.members) <= 3 * size


def spread(X, members):
    return sum(float((X[r] - X[r].mean(0)).square().sum()) for r in members if len(r))


def test_rounds_make_cells_more_compact(monkeypatch):
    X = points(3000, 6)
    after = spread(X, Cells(X, 60).members)
    monkeypatch.setattr("megagp.posterior.cells.MOST_DISTANCES", 3000 * 50 - 1)
    halved = Cells(X, 60).members
    assert {len(rows) for rows in halved} == {60}
    assert after < 0.9 * spread(X, halved)


def test_near_points_are_those_with_the_highest_counts():
    X, others = points(400), points(900, seed=1)
    cells, m = Cells(X, 40), 64
    found = cells.near(3, others, Neighbours(others), m).numpy()
    D = np.linalg.norm(X[cells.members[3]].numpy()[:, None] - others.numpy()[None], axis=2)
    to_centre = np.linalg.norm(others.numpy() - cells.centres[3].numpy(), axis=1)
    assert np.all(np.diff(to_centre[found]) >= 0)
    wider = np.argsort(to_centre)[: 3 * m]
    of_members = np.sort(np.sort(D, axis=1)[:, m // 8 - 1])
    h = of_members[(len(of_members) - 1) // 2]  # of two in the middle, the lower
    counts = np.exp(-3 * (D / h) ** 2).sum(0)
    assert set(found) == set(wider[np.argsort(-counts[wider])[:m]])


@pytest.mark.parametrize("m", [1, 5, 20, 50])
def test_as_many_near_points_as_there_are(m):
    X = points(20)
    near = Cells(X, 5).near(0, X, Neighbours(X), m)
    assert len(set(near.tolist())) == min(m, 20)


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
