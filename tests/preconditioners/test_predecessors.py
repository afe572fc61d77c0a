"""Nearest predecessors against a plain search over every pair."""

import numpy as np
import pytest
import torch

from megagp.preconditioners import nearest_predecessors


def find(n, m, without=(), d=3, seed=0):
    X = torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)))
    pivots = torch.tensor(list(without), dtype=torch.long)
    return X.numpy(), nearest_predecessors(X, m, pivots, np.random.default_rng(1))


@pytest.mark.parametrize("n", [1, 2, 5, 60, 400, 1500])
@pytest.mark.parametrize("d", [1, 3, 20])
def test_they_come_before_and_are_distinct(n, d):
    without = range(0, n, 7)
    _, found = find(n, 4, without, d)
    assert sorted(found.order) == list(range(n))
    position = np.argsort(found.order)
    for i, row in enumerate(found.nearest):
        kept = row[row >= 0]
        assert len(set(kept.tolist())) == len(kept)
        assert (position[kept] < position[i]).all()
        assert not set(kept.tolist()) & set(without)
        assert i not in without or len(kept) == 0


def test_they_are_the_nearest():
    X, found = find(900, 5, range(20))
    position = np.argsort(found.order)
    exact = 0
    for i in found.order[25:]:
        before = found.order[20 : position[i]]
        distance = np.linalg.norm(X[before] - X[i], axis=1)
        nearest = before[np.argsort(distance)[: min(5, len(before))]]
        kept = found.nearest[i][found.nearest[i] >= 0]
        # Nearest first; only a point whose 3 m neighbours nearly all come later has fewer.
        np.testing.assert_array_equal(kept, nearest[: len(kept)])
        exact += len(kept) == len(nearest)
    assert exact > 0.99 * (900 - 25)


def test_the_first_have_all_there_are():
    _, found = find(50, 8)
    position = np.argsort(found.order)
    counts = (found.nearest >= 0).sum(axis=1)
    np.testing.assert_array_equal(counts, np.minimum(position, 8))


def test_an_offset_changes_nothing():
    X = torch.from_numpy(np.random.default_rng(0).normal(size=(300, 3)))
    none = torch.zeros(0, dtype=torch.long)
    found = [nearest_predecessors(X + c, 4, none, np.random.default_rng(1)) for c in (0.0, 1e6)]
    np.testing.assert_array_equal(found[0].nearest, found[1].nearest)


def test_none_wanted():
    _, found = find(30, 0)
    assert found.nearest.shape == (30, 0)
