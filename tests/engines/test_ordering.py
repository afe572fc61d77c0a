"""The order of points that makes tiles small."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megagp.engines.ordering import TILE, kd_order


def volume(points, order, tile):
    """The mean over tiles of the sum of the sides of a tile's box."""
    parts = np.split(points[order], range(tile, len(points), tile))
    return np.mean([np.ptp(part, axis=0).sum() for part in parts])


@given(
    st.integers(0, 3000), st.integers(1, 5), st.sampled_from([1, 7, 256]), st.sampled_from([1, 1e9])
)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_a_permutation(n, d, tile, levels):
    points = np.random.default_rng(n).integers(0, int(levels) + 1, size=(n, d)).astype(float)
    order = kd_order(points, tile)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(n))


@pytest.mark.parametrize("n", [0, 1, TILE - 1, TILE])
def test_one_tile_stays_as_it_is(n):
    assert np.array_equal(kd_order(np.zeros((n, 2))), np.arange(n))


@pytest.mark.parametrize("n", [2 * TILE, 5000, 10_001])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_boxes_are_smaller_than_those_of_the_given_order(n, d):
    points = np.random.default_rng(0).normal(size=(n, d))
    before, after = (volume(points, order, TILE) for order in (np.arange(n), kd_order(points)))
    assert after < 0.9 * before


@pytest.mark.parametrize("n", [1000, 2560, 5001])
def test_tiles_of_one_dimension_are_disjoint_intervals(n):
    points = np.random.default_rng(0).normal(size=(n, 1))
    parts = np.split(points[kd_order(points)], range(TILE, n, TILE))
    assert all(a.max() <= b.min() for a, b in pairwise(parts))


def test_the_widest_dimension_is_split():
    rng = np.random.default_rng(0)
    points = rng.uniform(size=(4 * TILE, 2)) * [1.0, 100.0]
    parts = np.split(points[kd_order(points)], 4)
    assert all(np.ptp(part[:, 1]) < 40 for part in parts)
    assert all(np.ptp(part[:, 0]) > 0.9 for part in parts)


def test_clusters_do_not_share_tiles():
    rng = np.random.default_rng(0)
    label = rng.permutation(np.repeat(np.arange(8), TILE))
    points = 100 * np.stack([label % 2, label // 2 % 2, label // 4], axis=1) + rng.normal(
        size=(8 * TILE, 3)
    )
    tiles = np.split(label[kd_order(points)], 8)
    assert all(len(set(tile)) == 1 for tile in tiles)


def test_the_points_are_not_changed():
    points = np.random.default_rng(0).normal(size=(1000, 2))
    points.flags.writeable = False
    kd_order(points)


def test_the_same_order_again():
    points = np.random.default_rng(0).integers(0, 3, size=(2000, 2)).astype(float)
    assert np.array_equal(kd_order(points), kd_order(points.copy()))
