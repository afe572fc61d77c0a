"""Normal scores against SciPy's ranks, and what becomes of ties, constants and points outside."""

import numpy as np
import pytest
import torch
from scipy.stats import norm, rankdata

from megagp.normal_scores import KNOTS, NormalScores


def scores_of(column):
    z = norm.ppf((rankdata(column) - 0.5) / len(column))
    return (z - z.mean()) / z.std()


@pytest.mark.parametrize("n", [2, 7, KNOTS])
def test_like_ranks(n):
    rng = np.random.default_rng(0)
    X = np.stack([rng.lognormal(sigma=3, size=n), rng.integers(0, 3, n) + rng.normal(size=n)], 1)
    found = NormalScores.of(torch.from_numpy(X)).apply(torch.from_numpy(X)).numpy()
    for j in range(2):
        np.testing.assert_allclose(found[:, j], scores_of(X[:, j]), atol=1e-12)


def test_equal_values_share_a_score_and_a_constant_column_is_zero():
    X = torch.tensor([[1.0, 5.0], [0.0, 5.0], [1.0, 5.0], [1.0, 5.0]], dtype=torch.float64)
    found = NormalScores.of(X).apply(X)
    np.testing.assert_allclose(found[:, 0].numpy(), scores_of([1.0, 0.0, 1.0, 1.0]), atol=1e-12)
    assert not found[:, 1].any()


def test_many_values_are_met_by_straight_lines_between_knots():
    X = np.random.default_rng(1).lognormal(size=(20_000, 1))
    scores = NormalScores.of(torch.from_numpy(X))
    assert len(scores.knots) <= KNOTS
    found = scores.apply(torch.from_numpy(X)).numpy()[:, 0]
    exact = scores_of(X[:, 0])
    # Within the spacing of ranks between two knots, but for the outermost.
    inner = np.abs(exact) < 2.5
    np.testing.assert_allclose(found[inner], exact[inner], atol=0.02)
    order = np.argsort(X[:, 0])
    assert (np.diff(found[order]) >= 0).all()
    np.testing.assert_allclose(found[order[[0, -1]]], exact[order[[0, -1]]], atol=1e-12)


def test_beyond_all_values_it_goes_on_with_slope_one():
    X = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]
    scores = NormalScores.of(X)
    ends = scores.apply(torch.tensor([[-1.0], [1.0]], dtype=torch.float64))
    beyond = scores.apply(torch.tensor([[-3.0], [4.0]], dtype=torch.float64))
    np.testing.assert_allclose((beyond - ends).numpy(), [[-2.0], [3.0]], atol=1e-12)
