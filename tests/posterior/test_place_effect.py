"""Effects of places, against dense formulas on rows, with τ² between those that are equal."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import reference
from megagp import GPRegressor, load
from megagp.kernels import RBF, Matern32
from megagp.likelihood import Trend
from megagp.posterior import Posterior, Scale, pack, rows_left_out, unpack
from megagp.storage import StorageError
from megagp.training import places

KERNEL, NOISE, EFFECT = Matern32([0.7, 1.3], 1.5), 0.05, 0.3


def equal(X, Z):
    return (X[:, None] == Z).all(2)


def covariance(X, Z):
    """Of f + g, between rows."""
    return reference.matrix(KERNEL, X, Z) + EFFECT * equal(X, Z)


def rows(n=60, N=100, p=2, seed=0):
    """N rows at n places, and the noise variance of each, that of its place."""
    rng = np.random.default_rng(seed)
    where = np.r_[np.arange(n), rng.integers(0, n // 3, N - n)]
    X = rng.normal(size=(n, 2))[where]
    return X, rng.normal(size=(N, p)), NOISE * np.exp(rng.normal(size=n))[where]


def posterior(X, Y, noise, pivots=None):
    """What a fit makes of the rows, with a constant mean."""
    at = places(*(torch.from_numpy(A) for A in (X, Y, noise)))
    first = at.of(torch.from_numpy(X))
    total = at.noise_scale + EFFECT
    K = reference.matrix(KERNEL, first.numpy(), first.numpy()) + np.diag(total.numpy())
    H = np.ones((len(first), 1))
    G = np.linalg.solve(K, H)
    A = np.linalg.inv(H.T @ G)
    beta = A @ G.T @ at.Y.numpy()
    made = Posterior(
        X=first,
        kernel=KERNEL,
        noise=total,
        mean="constant",
        trend=Trend(torch.from_numpy(beta), torch.from_numpy(A)),
        weights=torch.from_numpy(np.linalg.solve(K, at.Y.numpy() - H @ beta)),
        trend_weights=torch.from_numpy(G),
        pivots=torch.arange(len(first) if pivots is None else pivots),
        rtol=1e-6,
        max_iter=200,
        neighbours=64,
        effects=torch.full_like(total, EFFECT),
        place_variance=EFFECT,
        place_noise=torch.from_numpy(noise)[at.first] / NOISE,
    )
    return made, at


def dense(X, Y, noise, X_new):
    """Mean and covariance of f + g + β, β with no prior, from all rows."""
    K, k = covariance(X, X) + np.diag(noise), covariance(X_new, X)
    H = np.ones((len(X), 1))
    A = np.linalg.inv(H.T @ np.linalg.solve(K, H))
    beta = A @ H.T @ np.linalg.solve(K, Y)
    u = 1 - k @ np.linalg.solve(K, H)
    C = covariance(X_new, X_new) - k @ np.linalg.solve(K, k.T) + u @ A @ u.T
    return beta + k @ np.linalg.solve(K, Y - H @ beta), C


def asked(X):
    """Places with many rows and with one, new ones, and one of each twice."""
    new = np.random.default_rng(1).normal(size=(10, 2))
    return np.concatenate([X[:10], X[50:60], new, X[:1], new[:1]])


@pytest.mark.parametrize("method", ["joint", "exact"])
@pytest.mark.parametrize("pivots", [None, 30], ids=["by Cholesky", "by solves"])
def test_mean_and_variance_are_those_of_the_rows(method, pivots):
    X, Y, noise = rows()
    made, _ = posterior(X, Y, noise, pivots)
    X_new = asked(X)
    mean, C = dense(X, Y, noise, X_new)
    found = made.predict_with_variance(torch.from_numpy(X_new), method)
    np.testing.assert_allclose(found[:, :-1], mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found[:, -1], C.diagonal(), rtol=1e-4)
    np.testing.assert_allclose(made.predict(torch.from_numpy(X_new)), mean, rtol=1e-6, atol=1e-8)


def test_a_bound_stays_one():
    X, Y, noise = rows()
    X_new = asked(X)
    exact = dense(X, Y, noise, X_new)[1].diagonal()
    made = replace(posterior(X, Y, noise, 5)[0], neighbours=3)
    for method in ("joint", "lanczos"):
        found = made.predict_with_variance(torch.from_numpy(X_new), method)[:, -1].numpy()
        assert (found > exact * (1 - 1e-6)).all()


def test_covariance_is_that_of_the_rows():
    X, Y, noise = rows()
    made, _ = posterior(X, Y, noise)
    X_new = asked(X)
    C = dense(X, Y, noise, X_new)[1]
    np.testing.assert_allclose(made.covariance(torch.from_numpy(X_new)), C, rtol=1e-3, atol=1e-5)


def test_noise_of_new_observations():
    X, Y, noise = rows()
    made, _ = posterior(X, Y, noise)
    X_new = asked(X)
    wanted = np.full(len(X_new), NOISE)
    wanted[:20] = np.r_[noise[:10], noise[50:60]]
    wanted[30] = noise[0]
    np.testing.assert_allclose(made.noise_at(torch.from_numpy(X_new), NOISE), wanted)


def test_rows_are_left_out_with_the_effects_of_their_places():
    X, Y, noise = rows()
    made, at = posterior(X, Y, noise)
    out = made.leave_one_out(at.Y, 60, seed=0)
    np.testing.assert_allclose(out.noise, at.noise_scale, rtol=1e-10)
    assert float(out.residual.abs().max()) < 1e-8
    ratio = torch.linspace(0.5, 2.0, len(X), dtype=torch.float64)
    for left_out in (None, ratio):
        found = rows_left_out(
            out, at, *(torch.from_numpy(A) for A in (Y, noise)), 100, seed=0, left_out=left_out
        )
        order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
        for i, row in enumerate(order.tolist()):
            then, rest = noise.copy(), np.arange(len(X)) != row
            if left_out is not None:
                then[at.place.numpy() == int(at.place[row])] *= float(ratio[row])
            mean, C = dense(X[rest], Y[rest], then[rest], X[row : row + 1])
            np.testing.assert_allclose(found.errors[i], Y[row] - mean[0], rtol=1e-6, atol=1e-8)
            assert float(found.variances[i]) == pytest.approx(C[0, 0] + then[row], rel=1e-6)
            assert float(found.noise[i]) == pytest.approx(then[row])


@pytest.mark.parametrize(
    "broken",
    ["variance", "word", "effects", "effects below 0", "factors"],
)
def test_files_keep_the_bits_and_are_checked(broken):
    made, _ = posterior(*rows())
    header, tensors = pack(made)
    X_new = torch.from_numpy(asked(rows()[0]))
    again = unpack(header, tensors)
    for one, other in zip(
        (again.predict_with_variance(X_new, "joint"), again.noise_at(X_new, NOISE)),
        (made.predict_with_variance(X_new, "joint"), made.noise_at(X_new, NOISE)),
        strict=True,
    ):
        assert torch.equal(one, other)
    wrong = {
        "variance": {"place_variance": math.inf},
        "word": {"place_variance": "much"},
        "effects": {"effects": 1.01 * tensors["noise"]},
        "effects below 0": {"effects": -tensors["effects"]},
        "factors": {"place_noise": -tensors["place_noise"]},
    }[broken]
    with pytest.raises(StorageError, match=next(iter(wrong))):
        unpack(header | wrong, tensors | wrong)


def test_places_that_mostly_show_no_noise(tmp_path):
    """A fit finds out, and predicts rows of places that it knows as their equals are."""
    rng = np.random.default_rng(0)
    place = rng.integers(200, size=1000)
    points, effect = rng.uniform(-2, 2, size=(300, 2)), 0.6 * rng.normal(size=300)
    std = np.where(np.arange(300) % 5 == 0, 0.5, 0.0)

    def observed(place):
        y = np.sin(2 * points[place, 0]) + effect[place] + std[place] * rng.normal(size=len(place))
        return points[place], y

    X, y = observed(place)
    X_new, y_new = observed(rng.integers(200, size=200))
    settings = {"inputs": "ranks", "random_state": 0}
    kernel = Matern32([1.0, 3.0], 1.0)
    for each in kernel.hyperparameters().values():
        each.frozen = True
    model = GPRegressor(kernel, **settings).fit(X, y)
    assert model.noise_model_ == "varying"
    assert model.place_variance_ * y.var() > 0.1
    assert GPRegressor(kernel, noise_model="constant", **settings).fit(X, y).place_variance_ == 0
    mean, found = model.predict(X_new, return_std=True)
    calm = std[[int(np.flatnonzero((points == x).all(1))[0]) for x in X_new]] == 0
    assert np.abs(y_new - mean)[calm].mean() < 0.02
    assert np.median(found[~calm]) > 5 * np.median(found[calm])
    one = [model.predict(x[None], return_std=True) for x in X_new[:9]]
    np.testing.assert_allclose(np.ravel(one).reshape(9, 2), np.stack([mean, found], 1)[:9])
    given = {"noise_variance": model.noise_variance_, "place_variance": model.place_variance_}
    same = GPRegressor(model.kernel_, training="none", **given, **settings).fit(X, y)
    np.testing.assert_allclose(same.predict(X_new, return_std=True), (mean, found), rtol=1e-6)
    plain = GPRegressor(model.kernel_, training="none", noise_variance=0.1, **settings).fit(X, y)
    assert plain.noise_model_ == "constant"
    # Samples share the effect of a place that nobody has seen.
    twice = np.repeat(points[250:253], 2, axis=0)
    draws = model.sample_y(twice, 50)
    np.testing.assert_allclose(draws[::2], draws[1::2], atol=1e-5)
    latent, std = (model.predict(twice, return_std=True, latent=of)[1] for of in (True, False))
    C = model.predict(twice, return_cov=True)[1]
    np.testing.assert_allclose(C.diagonal(), std**2, rtol=0.02)
    np.testing.assert_allclose(C[::2, 1::2].diagonal(), latent[::2] ** 2, rtol=0.02)
    model.save(tmp_path / "model.mgp")
    again = load(tmp_path / "model.mgp")
    assert again.place_variance_ == model.place_variance_
    for one, other in zip((mean, found), again.predict(X_new, return_std=True), strict=True):
        assert np.array_equal(one, other)


def test_means_are_as_exact_as_places_claim_to_know_them():
    # Nearly all places show no noise, so that little is unknown of a smooth function: far less than
    # `rtol` of y. An outputscale that is large makes β large, and residuals of K̂⁻¹ H count.
    rng = np.random.default_rng(3)
    points, noisy = rng.uniform(-1, 1, size=(1700, 2)), rng.random(1700) < 0.1
    place = np.repeat(np.arange(1700), rng.integers(1, 4, 1700))
    y = (points[:, 0] ** 2 + points[:, 1])[place] + 0.1 * noisy[place] * rng.normal(size=len(place))
    model = GPRegressor(RBF([1.0, 1.0]), random_state=0).fit(points[place], y)
    assert model.place_variance_ > 0
    fitted, X_new = model.posterior_, torch.from_numpy(rng.uniform(-1, 1, size=(200, 2)))
    mean, std = model.predict(X_new.numpy(), return_std=True, latent=True)
    X, new = fitted.X.numpy(), model._whitened(X_new).numpy()
    K = reference.matrix(fitted.kernel, X, X) + np.diag(fitted.noise.numpy())
    Y = model._y_whitening.apply(places(*_of(points[place], y)).Y).numpy()
    H = np.ones((len(X), 1))
    V = np.linalg.solve(K, np.column_stack([Y, H]))
    beta = (H.T @ V[:, :1]) / (H.T @ V[:, 1:])
    exact = reference.matrix(fitted.kernel, new, X) @ (V[:, :1] - V[:, 1:] @ beta) + beta
    exact = model._y_whitening.undo(torch.from_numpy(exact))[:, 0].numpy()
    assert np.sqrt(np.mean((mean - exact) ** 2)) < 0.3 * np.median(std)


def _of(X, y):
    """X, Y and noise_scale of `places`."""
    return torch.from_numpy(X), torch.from_numpy(y[:, None]), torch.ones(len(y)).double()


def test_known_places_are_not_calibrated():
    # Where all rows have agreed, errors of other rows would say that there are none at all.
    X, Y, noise = rows()
    made, *_ = posterior(X, Y, noise)
    scale = Scale(made.X[:3], torch.zeros(3).double(), 1.0, math.log(1e-3))
    made = replace(made, calibration=scale, place_noise=torch.ones(len(made.X)).double())
    found = made.calibration_at(torch.cat([made.X[:4], made.X[:4] + 0.1]))
    np.testing.assert_allclose(found, [1.0] * 4 + [1e-3] * 4, rtol=1e-12)
