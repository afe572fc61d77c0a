"""Nearest training points: against a plain sort of all distances."""

import numpy as np
import pytest
import torch

from megagp.kernels import RBF, Constant, Kernel, Linear, Matern32, Periodic, Positive
from megagp.neighbours import TREE_MAX_D, Neighbours, chunks, metric_features


def points(n, d, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)))


class Own(Kernel):
    lengthscale = Positive()

    def evaluate(self, X, Z):
        return 1 / (1 + torch.cdist(X, Z).square() / self.lengthscale**2)


@pytest.mark.parametrize("d", [1, 3, TREE_MAX_D, TREE_MAX_D + 1, 20])
@pytest.mark.parametrize("m", [1, 7, 200])
def test_nearest_are_those_of_a_sort(d, m):
    X, Z = points(300, d), points(17, d, 1)
    found = Neighbours(X).nearest(Z, m)
    D = np.linalg.norm(Z.numpy()[:, None] - X.numpy()[None], axis=2)
    assert found.shape == (17, m)
    np.testing.assert_array_equal(found, np.argsort(D, axis=1)[:, :m])


@pytest.mark.parametrize("d", [2, TREE_MAX_D + 1])
def test_fewer_points_than_asked_for(d):
    assert (
        Neighbours(points(5, d)).nearest(points(3, d, 1), 9).sort(dim=1).values.tolist()
        == [[0, 1, 2, 3, 4]] * 3
    )
    assert Neighbours(points(1, d)).nearest(points(2, d), 4).tolist() == [[0], [0]]
    assert Neighbours(points(0, d)).nearest(points(2, d), 4).shape == (2, 0)
    assert Neighbours(points(4, d)).nearest(points(2, d), 0).shape == (2, 0)


@pytest.mark.parametrize("d", [2, TREE_MAX_D + 1])
def test_duplicates_are_found_each_once(d):
    X = points(20, d).repeat(3, 1)
    found = Neighbours(X).nearest(X[:20], 3)
    assert [sorted(row) for row in found.tolist()] == [[i, i + 20, i + 40] for i in range(20)]


def test_far_from_zero_and_in_small_tiles():
    X, Z = points(200, 12), points(30, 12, 1)
    near = Neighbours(X).nearest(Z, 10)
    moved = Neighbours(X + 1e6, memory_budget=1).nearest(Z + 1e6, 10)
    np.testing.assert_array_equal(near, moved)


def test_metric_is_the_kernels():
    X = points(6, 3)
    ard = [0.5, 1.0, 4.0]
    np.testing.assert_allclose(metric_features(Matern32(ard), X), X / torch.tensor(ard))
    assert metric_features(Own(), X) is X
    assert metric_features(Constant(2.0), X) is X
    both = metric_features(0.3 * RBF(2.0, active_dims=[1]) + Linear(0.5) * Periodic(), X)
    assert both.shape == (6, 1 + 3 + 6)
    np.testing.assert_allclose(both[:, 0], X[:, 1] / 2.0)


@pytest.mark.parametrize(("t", "size"), [(0, 3), (1, 3), (7, 3), (6, 3)])
def test_chunks_cover_all_once(t, size):
    assert [i for c in chunks(t, size) for i in range(t)[c]] == list(range(t))
    assert all(0 < c.stop - c.start <= size for c in chunks(t, size))
