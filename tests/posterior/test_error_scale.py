"""The factor that explains errors."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

import reference
from megagp.kernels import Matern32
from megagp.posterior.error_scale import Errors, Scale, learn_scale
from megagp.storage import StorageError


def errors(n, noise_std, seed=0, p=1):
    rng = np.random.default_rng(seed)
    X = torch.from_numpy(rng.normal(size=(n, 2)))
    latent = torch.from_numpy(rng.uniform(0, 0.02, n))
    draws = torch.from_numpy(rng.normal(size=(n, p)))
    noisy = draws * (latent + noise_std(X).square()).sqrt()[:, None]
    return Errors(X, noisy, latent, torch.full((n,), 0.09, dtype=torch.float64))


def test_the_factor_that_errors_have():
    def std(X):
        return 0.3 * (0.8 * X[:, 0].tanh()).exp()

    scale = learn_scale(errors(4000, std), 0.0, seed=0)
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
            ((0.09 * learn_scale(errors(600, std, p=p), 0.0, 0).at(X)).sqrt() / std(X))
            .log()
            .square()
            .mean()
        )
        for p in (1, 8)
    ]
    assert off[1] < 0.5 * off[0]


def test_no_factor_where_the_noise_is_the_same_everywhere():
    assert learn_scale(errors(2000, lambda X: torch.full((len(X),), 0.3)), 0.0, 0) is None


def test_a_factor_on_all_of_the_variance():
    def std(X):
        return 0.3 * (0.8 * X[:, 0].tanh()).exp()

    found = errors(4000, std)
    whole = found._replace(fixed=torch.zeros_like(found.fixed), scaled=found.fixed + found.scaled)
    scale = learn_scale(whole, 0.0, seed=0)
    other = errors(500, std, seed=1)
    ratio = (other.fixed + other.scaled) * scale.at(other.X) / (other.fixed + std(other.X) ** 2)
    assert 0.85 < float(ratio.median()) < 1.2
    assert float((ratio.log().abs() < 0.5).double().mean()) > 0.9


def test_a_factor_is_no_smaller_than_it_may_be():
    found = errors(1500, lambda X: 0.3 * (2 * X[:, 0]).exp())
    low, free = (learn_scale(found, least, seed=0) for least in (0.1, 0.0))
    assert low.least >= 0.1
    assert float(low.at(found.X).min()) == pytest.approx(low.least)
    assert float(free.at(found.X).min()) < 0.01


def test_the_level_is_that_of_errors_not_seen():
    """Few errors: the factor is nearer to those it was learned from than to others."""
    found = errors(250, lambda X: 0.3 * (1.5 * X[:, 0]).exp())
    found = found._replace(fixed=torch.zeros_like(found.fixed))
    new = errors(20_000, lambda X: 0.3 * (1.5 * X[:, 0]).exp(), seed=1)
    scale = learn_scale(found, 0.0, seed=0)

    def level(at):
        return float((at.errors[:, 0].square() / (at.scaled * scale.at(at.X))).mean())

    assert level(found) < 0.9
    assert abs(level(new) - 1) < abs(level(new) / level(found) - 1)


def test_damaged_tensors():
    scale = Scale(torch.zeros(3, 2).double(), torch.zeros(3).double(), 1.0, 0.0)
    packed = scale.pack("noise")
    assert set(packed) == {"noise_Z", "noise_weights", "noise_numbers"}
    for name, value in [
        ("noise_Z", torch.zeros(3, 4).double()),
        ("noise_weights", torch.zeros(2).double()),
        ("noise_numbers", torch.tensor([-1.0, 0.0, 0.0]).double()),
        ("noise_numbers", torch.tensor([1.0, 1e300, 0.0]).double()),
        ("noise_numbers", torch.tensor([1.0, 0.0, -1.0]).double()),
    ]:
        with pytest.raises(StorageError, match=f"{name}: expected"):
            Scale.unpack({**packed, name: value}, "noise", 2)


def test_the_density_is_highest_there():
    """Against the density written out, at the factor found and next to it."""
    found = errors(1500, lambda X: 0.3 * X[:, 0].exp())
    scale = learn_scale(found, 0.0, seed=0)
    K = reference.matrix(Matern32(scale.lengthscale), scale.Z.numpy(), scale.Z.numpy())
    K += 1e-6 * np.eye(len(K))

    def density(constant, weights, amplitude):
        at = Scale(scale.Z, torch.from_numpy(weights), scale.lengthscale, constant)
        v = found.fixed.numpy() + 0.09 * at.at(found.X).numpy()
        e = found.errors[:, 0].numpy()
        return -0.5 * np.sum(np.log(v) + e**2 / v) - 0.5 * weights @ K @ weights / amplitude**2

    weights, rng = scale.weights.numpy(), np.random.default_rng(0)
    # The constant has been raised, by the level of errors that were not seen.
    constant = minimize_scalar(lambda c: -density(c, weights, 1.0), bounds=(-3, 3)).x
    assert constant + 0.01 < scale.constant < constant + 0.3
    # Which amplitude was taken is not kept: at the right one nothing nearby is better.
    best = []
    for amplitude in (1.0, 2.0):
        here = density(constant, weights, amplitude)
        near = [density(constant, f * weights, amplitude) for f in (0.95, 1.05)]
        steps = 0.05 * np.linalg.cholesky(np.linalg.inv(K)) @ rng.normal(size=(len(K), 10))
        near += [density(constant, weights + step, amplitude) for step in steps.T]
        best.append(here > max(near))
    assert any(best)
