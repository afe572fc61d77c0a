"""Errors of points left out, against refits without them; the factor learned from errors."""

import numpy as np
import pytest
import torch

import reference
from megagp.kernels import Matern32
from megagp.likelihood import Trend
from megagp.posterior import Posterior
from megagp.posterior.noise_scale import Errors, NoiseScale, learn_noise_scale

KERNEL, NOISE = Matern32([0.7, 1.3], 1.5), 0.05


def posterior(n, pivots, p=2):
    rng = np.random.default_rng(n)
    X, Y = rng.normal(size=(n, 2)), rng.normal(size=(n, p))
    noise = NOISE * rng.uniform(0.5, 2, n)
    K = reference.matrix(KERNEL, X, X) + np.diag(noise)
    nothing = torch.zeros(0, 0, dtype=torch.float64)
    made = Posterior(
        X=torch.from_numpy(X),
        kernel=KERNEL,
        noise=torch.from_numpy(noise),
        mean="zero",
        trend=Trend(torch.zeros(0, p, dtype=torch.float64), nothing),
        weights=torch.from_numpy(np.linalg.solve(K, Y)),
        trend_weights=torch.zeros(n, 0, dtype=torch.float64),
        pivots=torch.arange(pivots),
        rtol=0.01,
        max_iter=100,
        neighbours=64,
    )
    return made, Y, K


@pytest.mark.parametrize("pivots", [90, 30], ids=["by Cholesky", "joint"])
def test_each_point_is_predicted_from_the_others(pivots):
    made, Y, K = posterior(90, pivots)  # 128 neighbours: all there are
    found = made.leave_one_out(40, seed=0)
    assert len(found.X) == (90 if pivots == 90 else 40)
    for x, error, latent in zip(*found, strict=True):
        i = int((x == made.X).all(1).nonzero())
        rest = np.arange(90) != i
        weights = np.linalg.solve(K[np.ix_(rest, rest)], K[rest, i])
        np.testing.assert_allclose(error, Y[i] - weights @ Y[rest], rtol=1e-5, atol=1e-8)
        prior = float(KERNEL.diagonal(x[None]))
        assert float(latent) == pytest.approx(prior - weights @ K[rest, i], rel=1e-4)


def test_points_at_one_place_do_not_know_themselves():
    made, *_ = posterior(90, 10)
    twice = torch.cat([made.X, made.X[:1].repeat(140, 1)])  # more than the neighbours looked at
    changed = {"X": twice, "noise": torch.full((230,), NOISE, dtype=torch.float64)}
    changed |= {"weights": torch.ones(230, 1, dtype=torch.float64)}
    found = Posterior(**{**vars(made), **changed}).leave_one_out(300, seed=0)
    assert len(found.X) == 220
    assert bool((found.latent > 0).all())


def errors(n, noise_std, seed=0, p=1):
    rng = np.random.default_rng(seed)
    X = torch.from_numpy(rng.normal(size=(n, 2)))
    latent = torch.from_numpy(rng.uniform(0, 0.02, n))
    draws = torch.from_numpy(rng.normal(size=(n, p)))
    return Errors(X, draws * (latent + noise_std(X).square()).sqrt()[:, None], latent)


def test_the_factor_that_errors_have():
    def std(X):
        return 0.3 * (0.8 * X[:, 0].tanh()).exp()

    scale = learn_noise_scale(errors(4000, std), 0.09, 0.0, seed=0)
    X = errors(500, std, seed=1).X
    ratio = (0.09 * scale.at(X)).sqrt() / std(X)
    assert 0.9 < float(ratio.median()) < 1.1
    assert float((ratio.log().abs() < 0.25).double().mean()) > 0.9


def test_several_outputs_tell_more():
    def std(X):
        return 0.3 * (0.8 * X[:, 0].tanh()).exp()

    X = errors(500, std, seed=1).X
    off = [
        float(
            ((0.09 * learn_noise_scale(errors(600, std, p=p), 0.09, 0.0, 0).at(X)).sqrt() / std(X))
            .log()
            .square()
            .mean()
        )
        for p in (1, 8)
    ]
    assert off[1] < 0.5 * off[0]


def test_no_factor_where_the_noise_is_the_same_everywhere():
    assert (
        learn_noise_scale(errors(2000, lambda X: torch.full((len(X),), 0.3)), 0.09, 0.0, 0) is None
    )


def test_the_density_is_highest_there():
    """Against the density written out, at the factor found and next to it."""
    found = errors(1500, lambda X: 0.3 * X[:, 0].exp())
    scale = learn_noise_scale(found, 0.09, 0.0, seed=0)
    K = reference.matrix(Matern32(scale.lengthscale), scale.Z.numpy(), scale.Z.numpy())
    K += 1e-6 * np.eye(len(K))

    def density(constant, weights, amplitude):
        at = NoiseScale(scale.Z, torch.from_numpy(weights), scale.lengthscale, constant)
        v = found.latent.numpy() + 0.09 * at.at(found.X).numpy()
        e = found.errors[:, 0].numpy()
        return -0.5 * np.sum(np.log(v) + e**2 / v) - 0.5 * weights @ K @ weights / amplitude**2

    weights, rng = scale.weights.numpy(), np.random.default_rng(0)
    # Which amplitude was taken is not kept: at the right one nothing nearby is better.
    best = []
    for amplitude in (1.0, 2.0):
        here = density(scale.constant, weights, amplitude)
        near = [density(scale.constant + c, weights, amplitude) for c in (-0.05, 0.05)]
        near += [density(scale.constant, f * weights, amplitude) for f in (0.95, 1.05)]
        steps = 0.05 * np.linalg.cholesky(np.linalg.inv(K)) @ rng.normal(size=(len(K), 10))
        near += [density(scale.constant, weights + step, amplitude) for step in steps.T]
        best.append(here > max(near))
    assert any(best)
