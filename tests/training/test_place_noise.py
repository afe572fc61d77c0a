"""Noise of each place, from the rows that share it."""

import numpy as np
import pytest
import torch

from megagp.training import place_noise, places
from megagp.training.place_noise import Squares


def rows(std, seed=0, most=9, p=1):
    """Up to `most` rows at each place, in no order, with the standard deviation of the place."""
    rng = np.random.default_rng(seed)
    place = rng.permutation(np.repeat(np.arange(len(std)), rng.integers(1, most, len(std))))
    Y = rng.normal(size=(len(std), p))[place]
    Y += std[place, None] * rng.normal(size=Y.shape)
    return torch.from_numpy(place[:, None].astype(float)), torch.from_numpy(Y)


def found(X, Y, least=1e-4, scale=None):
    scale = torch.ones(len(X), dtype=torch.float64) if scale is None else scale
    at = places(X, Y, scale)
    return at, place_noise(at, Y, scale, least)


def test_squares_are_those_of_rows_predicted_from_the_others():
    X, Y = rows(np.ones(12), p=2)
    scale = torch.rand(len(X), generator=torch.Generator().manual_seed(0)).double() + 0.5
    at = places(X, Y, scale)
    squares = Squares.of(at, Y, scale, 1e-4)
    for j in range(len(X)):
        others = ((X[j] == X).all(1) & (torch.arange(len(X)) != j)).numpy()
        if not others.any():
            assert float(squares.own[j]) == float(squares.others[j]) == 0
            continue
        w = 1 / scale.numpy()[others]
        mean = np.average(Y[others], axis=0, weights=w)
        error = float(((Y[j].numpy() - mean) ** 2).sum())
        assert float(squares.own[j]) == pytest.approx(error / (float(scale[j]) + 1 / w.sum()))
        q = float((w[:, None] * (Y[others].numpy() - mean) ** 2).sum())
        assert float(squares.others[j]) == pytest.approx(q, abs=1e-12)
        assert float(squares.further[j]) == 2 * (others.sum() - 1)


@pytest.mark.parametrize("p", [1, 2])
def test_one_noise_for_all_is_found_to_be_that(p):
    assert found(*rows(np.full(800, 0.3), p=p))[1] is None


def test_too_few_rows_say_nothing():
    X, Y = rows(np.where(np.arange(800) % 2 == 0, 0.0, 1.0))
    assert found(X[:100], Y[:100])[1] is None
    alone = torch.arange(500.0).double()[:, None]
    assert found(alone, alone)[1] is None


def test_noise_below_the_least_is_that():
    assert found(*rows(np.where(np.arange(800) % 4 == 0, 0.5, 0.0)), least=3.0)[1] is None
    X, _ = rows(np.zeros(800))
    assert found(X, torch.zeros_like(X))[1] is None


@pytest.mark.parametrize("p", [1, 2])
def test_noise_of_two_sizes(p):
    std = np.where(np.arange(1000) % 4 == 0, 0.5, 0.0)
    X, Y = rows(std, most=20, p=p)
    at, own = found(X, Y, least=1e-3)
    count = torch.bincount(at.place)
    noise, truth = own.typical * own.factor, torch.from_numpy(std)[at.of(X)[:, 0].long()]
    assert float(noise.min()) >= 1e-3
    many = count > 12
    assert float(noise[many & (truth == 0)].max()) < 0.05
    large = noise[many & (truth > 0)]
    assert float(large.mean()) == pytest.approx(0.25, rel=0.3)
    assert bool((noise[count == 1] == own.typical).all())
    # The rows of a place with two, each foretold by one other, which alone says nothing.
    assert torch.allclose(own.left_out[count[at.place] == 2], torch.ones(1, dtype=torch.float64))


def test_rows_foretell_rows_of_the_same_places_better():
    """Than one noise for all would, on rows that were not there."""
    std = np.exp(np.random.default_rng(1).normal(size=1500))
    X, Y = rows(std, most=12)
    seen = torch.rand(len(X), generator=torch.Generator().manual_seed(0)) < 0.8
    at, own = found(X[seen], Y[seen])
    where = {float(x): i for i, x in enumerate(at.of(X[seen])[:, 0])}
    asked = [j for j in (~seen).nonzero()[:, 0].tolist() if float(X[j]) in where]
    place = torch.tensor([where[float(X[j])] for j in asked])
    error = (Y[asked] - at.Y[place])[:, 0].square()
    spread = 1 + 1 / torch.bincount(at.place)[place]
    own_noise, common = own.typical * own.factor[place] * spread, (error / spread).mean() * spread
    gain = 0.5 * (common.log() + error / common - own_noise.log() - error / own_noise).mean()
    assert float(gain) > 0.3
