"""GPRegressor: the scikit-learn contract, and predictions against dense float64."""

import json
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import reference
from megagp import GPRegressor, load
from megagp.kernels import RBF, Kernel, Matern32, Positive
from megagp.mean import basis
from megagp.posterior import VARIANCES
from megagp.scores import score
from megagp.solvers import ConvergenceWarning
from megagp.storage import StorageError, kernel_to_json, read, write

NOISE = 0.02


def data(n=300, d=2, seed=0, noise=0.1):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, d))
    return X, np.sin(2 * X[:, 0]) + X.sum(1) ** 2 / 4 + noise * rng.normal(size=n)


def fixed(**settings):
    """Hyperparameters given, none learned, inputs and outputs as they are."""
    settings = {"mean": "zero", "whiten": False, "training": "none", **settings}
    return GPRegressor(Matern32([0.7, 1.3], 1.5), noise_variance=NOISE, random_state=0, **settings)


def dense(X, y, X_new, noise=NOISE):
    """Mean and covariance of the function by the textbook, with no mean function."""
    kernel = Matern32([0.7, 1.3], 1.5)
    K = reference.matrix(kernel, X, X) + noise * np.eye(len(X))
    K_new = reference.matrix(kernel, X_new, X)
    C = reference.matrix(kernel, X_new, X_new) - K_new @ np.linalg.solve(K, K_new.T)
    return K_new @ np.linalg.solve(K, y), C


@parametrize_with_checks([GPRegressor(random_state=0)])
def test_scikit_learn(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks warn about themselves
        check(estimator)


def test_against_dense():
    X, y = data()
    X_new = data(40, seed=1)[0]
    mean, C = dense(X, y, X_new)
    model = fixed().fit(X, y)
    np.testing.assert_allclose(model.predict(X_new), mean, rtol=1e-9, atol=1e-10)
    for method in ("joint", "exact"):
        std = model.predict(X_new, return_std=True, variance=method)[1]
        np.testing.assert_allclose(std, np.sqrt(np.diag(C) + NOISE), rtol=1e-8)
    latent = model.predict(X_new, return_std=True, latent=True)[1]
    np.testing.assert_allclose(latent, np.sqrt(np.diag(C)), rtol=1e-6)
    found = model.predict(X_new, return_cov=True, latent=True)[1]
    np.testing.assert_allclose(found, C, atol=1e-9)


def test_against_dense_by_products_alone():
    # Beyond DENSE_BELOW: pivots, PCG and neighbours.
    X, y = data(2200)
    X_new = data(60, seed=1)[0]
    mean, C = dense(X, y, X_new)
    model = fixed(rtol=1e-8).fit(X, y)
    assert model.diagnostics_["precompute"]["status"] == "CONVERGED"
    assert max(model.diagnostics_["precompute"]["residual"]) <= 1e-8
    np.testing.assert_allclose(model.predict(X_new), mean, atol=1e-6)
    exact = np.sqrt(np.diag(C) + NOISE)
    for method, slack in (("joint", 0.02), ("exact", 1e-6), ("lanczos", 1.0)):
        std = model.predict(X_new, return_std=True, variance=method)[1]
        assert (std >= exact * (1 - 1e-8)).all(), method
        assert np.median(std / exact - 1) <= slack, method


def test_against_scikit_learn_at_the_same_hyperparameters():
    X, y = data()
    X_new = data(40, seed=1)[0]
    kernel = ConstantKernel(1.5) * Matern([0.7, 1.3], nu=1.5)
    peer = GaussianProcessRegressor(kernel, alpha=NOISE, optimizer=None).fit(X, y)
    model = fixed().fit(X, y)
    mean, std = peer.predict(X_new, return_std=True)
    np.testing.assert_allclose(model.predict(X_new), mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(
        model.predict(X_new, return_std=True, latent=True)[1], std, rtol=1e-6
    )
    assert model.log_marginal_likelihood_ == pytest.approx(peer.log_marginal_likelihood_value_)


def test_universal_kriging():
    X, y = data(200)
    X_new = 3 * data(20, seed=1)[0]
    kernel = Matern32([0.7, 1.3], 1.5)
    K = reference.matrix(kernel, X, X) + NOISE * np.eye(len(X))
    H, h = np.column_stack([np.ones(200), X]), np.column_stack([np.ones(20), X_new])
    A = np.linalg.inv(H.T @ np.linalg.solve(K, H))
    beta = A @ H.T @ np.linalg.solve(K, y)
    K_new = reference.matrix(kernel, X_new, X)
    mean = h @ beta + K_new @ np.linalg.solve(K, y - H @ beta)
    U = h - K_new @ np.linalg.solve(K, H)
    C = reference.matrix(kernel, X_new, X_new) - K_new @ np.linalg.solve(K, K_new.T) + U @ A @ U.T
    model = fixed(mean="linear").fit(X, y)
    found, std = model.predict(X_new, return_std=True, latent=True)
    np.testing.assert_allclose(found, mean, rtol=1e-8)
    np.testing.assert_allclose(std, np.sqrt(np.diag(C)), rtol=1e-8)


@pytest.mark.parametrize(
    ("noise_variance", "mean"), [(1e-4, "constant"), (1e-3, "linear"), (1e-2, "constant")]
)
def test_variances_at_default_settings_against_dense_ones(noise_variance, mean):
    """By products alone, with the uncertainty of the mean, whose solve has a tolerance."""
    X, y = data(2000, d=3, noise=np.sqrt(noise_variance))
    inside, around = data(200, d=3, seed=1)[0], 3 * data(50, d=3, seed=2)[0]
    X_new = np.concatenate([inside, around, X[:50]])
    model = GPRegressor(random_state=0, mean=mean).fit(X, y)
    kernel, posterior = model.kernel_, model.posterior_
    Z, Z_new = posterior.X, model._whitened(X_new)
    H, h = (basis(points, mean).numpy() for points in (Z, Z_new))
    Z, Z_new = Z.numpy(), Z_new.numpy()
    K_hat = reference.matrix(kernel, Z, Z) + np.diag(posterior.noise.numpy())
    K = reference.matrix(kernel, Z, Z_new)
    G = np.linalg.solve(K_hat, H)
    U, T = h - K.T @ G, np.linalg.inv(H.T @ G)
    prior = reference.matrix(kernel, Z_new, Z_new).diagonal()
    latent = prior - np.sum(K * np.linalg.solve(K_hat, K), axis=0) + np.sum(U @ T * U, axis=1)
    scale = float(model._y_whitening.scale[0])
    for noise in (0.0, model.noise_variance_):
        for way, excess in (("joint", 0.02), ("exact", 0.005)):
            found = model.predict(X_new, return_std=True, latent=noise == 0, variance=way)[1]
            ratio = found / (scale * np.sqrt(latent + noise))
            # Roundoff in the variance of a function next to a training point.
            assert ratio.min() > 1 - (1e-3 if noise == 0 else 1e-6)
            if noise:
                assert np.median(ratio) < 1 + excess


def test_units_do_not_matter():
    X, y = data()
    shift = np.array([1e3, -5.0])
    a = GPRegressor(random_state=0).fit(X, y)
    b = GPRegressor(random_state=0).fit(1000 * X + shift, 50 * y - 7)
    mean, std = a.predict(X[:9], return_std=True)
    mean_b, std_b = b.predict(1000 * X[:9] + shift, return_std=True)
    np.testing.assert_allclose(mean_b, 50 * mean - 7, rtol=1e-4)
    np.testing.assert_allclose(std_b, 50 * std, rtol=1e-3)
    n_log = len(y) * np.log(50)
    assert b.log_marginal_likelihood_ == pytest.approx(a.log_marginal_likelihood_ - n_log, abs=0.1)


def uneven(n, seed=0):
    """Ten times as much noise at the right end as at the left one."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    std = 0.16 * 10 ** (X[:, 0] / 4)
    return X, np.sin(2 * X[:, 0]) + std * rng.normal(size=n), std


@pytest.mark.parametrize("n", [800, 2000], ids=["Cholesky", "products"])
def test_noise_that_varies(n, tmp_path):
    X, y, _ = uneven(n)
    X_new, y_new, std = uneven(500, seed=1)
    models = {
        name: GPRegressor(noise_model=name, random_state=0).fit(X, y)
        for name in ("constant", "varying")
    }
    nll = {name: score(y_new, *m.predict(X_new, return_std=True)).nll for name, m in models.items()}
    best = score(y_new, np.sin(2 * X_new[:, 0]), std).nll
    assert nll["varying"] < best + 0.05 < nll["constant"] - 0.1
    model = models["varying"]
    assert model.noise_model_ == "varying"
    assert models["constant"].noise_model_ == "constant"
    before, after = (len(m.diagnostics_["phases"]) for m in models.values())
    assert after == before + 1
    mean, found = model.predict(X_new, return_std=True)
    latent = model.predict(X_new, return_std=True, latent=True)[1]
    off = np.log(np.sqrt(found**2 - latent**2) / std)
    assert abs(np.median(off)) < 0.1
    assert np.quantile(np.abs(off), 0.9) < 0.3
    C = model.predict(X_new[:9], return_cov=True)[1]
    np.testing.assert_allclose(np.sqrt(np.diag(C)), found[:9], rtol=0.03)
    model.save(tmp_path / "model.mgp")
    again = load(tmp_path / "model.mgp")
    assert again.noise_model_ == "varying"
    for one, other in zip((mean, found), again.predict(X_new, return_std=True), strict=True):
        assert np.array_equal(one, other)


def test_varying_noise_is_the_posterior_of_that_noise():
    """Mean and variance of the dense formula, with the noise that was found at each point."""
    X, y, _ = uneven(600)
    model = GPRegressor(
        Matern32([0.7, 1.3], 1.5),
        noise_model="varying",
        noise_variance=0.05,
        mean="zero",
        whiten=False,
        training="none",
        random_state=0,
    ).fit(X, y)
    noise = model.noise_variance_ * model.posterior_.noise_scale.at(model.posterior_.X).numpy()
    assert noise.max() / noise.min() > 10
    assert np.exp(np.log(noise).mean()) == pytest.approx(model.noise_variance_)
    X_new = uneven(30, seed=1)[0]
    mean, C = dense(X, y, X_new, noise=noise)
    found, std = model.predict(X_new, return_std=True, latent=True)
    np.testing.assert_allclose(found, mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(std, np.sqrt(np.diag(C)), rtol=1e-6)


def test_varying_noise_where_it_does_not_vary():
    X, y = data(600)
    plain, varying = (
        GPRegressor(noise_model=name, random_state=0).fit(X, y) for name in ("constant", "varying")
    )
    assert varying.noise_model_ == "constant"
    assert np.array_equal(plain.predict(X, return_std=True), varying.predict(X, return_std=True))
    with pytest.raises(ValueError, match="noise_model: expected 'auto' or 'constant' with"):
        varying.fit(X, y, noise_scale=np.ones(600))
    with pytest.raises(ValueError, match="noise_model: expected one of"):
        GPRegressor(noise_model="loud").fit(X, y)


def rougher(n, seed=0):
    """Calm on the left and quick on the right, without noise to speak of."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 2))
    return X, np.sin(2 * np.exp(3 * X[:, 0])) * np.cos(X[:, 1]) + 1e-3 * rng.normal(size=n)


@pytest.mark.parametrize("n", [800, 2000], ids=["Cholesky", "products"])
def test_calibration(n, tmp_path):
    X, y = rougher(n)
    X_new, y_new = rougher(1000, seed=1)
    plain, local = (
        GPRegressor(calibration=name, random_state=0).fit(X, y) for name in ("none", "local")
    )
    assert (plain.calibration_, local.calibration_) == ("none", "local")
    mean, std = local.predict(X_new, return_std=True)
    before, model_std = plain.predict(X_new, return_std=True)
    assert np.array_equal(mean, before)
    assert score(y_new, mean, std).nll < score(y_new, mean, model_std).nll - 0.2
    standardised = ((y_new - mean) / std)[X_new[:, 0] < 0], ((y_new - mean) / std)[X_new[:, 0] > 0]
    assert all(0.6 < np.sqrt(np.mean(z**2)) < 1.5 for z in standardised)
    # One factor for all of a variance: what it is of the function, of the noise, between points.
    factor = (std / model_std) ** 2
    of_function, model_of_function = (
        m.predict(X_new, return_std=True, latent=True)[1] for m in (local, plain)
    )
    np.testing.assert_allclose((of_function / model_of_function) ** 2, factor, rtol=1e-6)
    C, of_model = (m.predict(X_new[:9], return_cov=True)[1] for m in (local, plain))
    np.testing.assert_allclose(C, of_model * np.sqrt(np.outer(factor[:9], factor[:9])), rtol=1e-6)
    local.save(tmp_path / "model.mgp")
    again = load(tmp_path / "model.mgp")
    assert again.calibration_ == "local"
    assert np.array_equal(again.predict(X_new, return_std=True)[1], std)


def test_calibration_where_there_is_nothing_to_gain():
    X, y = data(600)
    model = GPRegressor(calibration="local", random_state=0).fit(X, y)
    assert model.calibration_ == "none"
    with pytest.raises(ValueError, match="calibration: expected one of"):
        GPRegressor(calibration="everywhere").fit(X, y)


def test_the_best_quality_calibrates_and_several_outputs_share_it():
    X, y = rougher(800)
    model = GPRegressor(quality="best", noise_model="constant", random_state=0)
    model.fit(X, np.stack([y, -2 * y], axis=1))
    assert model.calibration_ == "local"
    mean, std = model.predict(X[:5], return_std=True)
    assert mean.shape == std.shape == (5, 2)
    np.testing.assert_allclose(std[:, 1], 2 * std[:, 0], rtol=1e-6)
    scaled = GPRegressor(calibration="local", random_state=0).fit(X, y, noise_scale=np.ones(800))
    assert scaled.calibration_ == "local"


def test_noise_is_not_what_varies_where_there_is_none():
    X, y = rougher(800)
    model = GPRegressor(noise_model="varying", random_state=0).fit(X, y)
    assert model.noise_model_ == "constant"


def test_without_training_the_noise_is_the_one_given():
    """Below the floor too; with training, that is where it starts."""
    X, y = data(200)
    X_new = data(20, seed=1)[0]
    model = fixed().set_params(noise_variance=1e-6, noise_floor=0.1).fit(X, y)
    assert model.noise_variance_ == pytest.approx(1e-6)
    np.testing.assert_allclose(model.predict(X_new), dense(X, y, X_new, 1e-6)[0], rtol=1e-6)
    seen = []
    GPRegressor(noise_variance=1e-6, noise_floor=0.1, on_step=seen.append, random_state=0).fit(X, y)
    assert min(step.noise_variance for step in seen) >= 0.1 * (1 - 1e-9)


def test_varying_noise_without_training_may_be_below_the_floor():
    X, y, _ = uneven(600)
    model = fixed(noise_model="varying", noise_floor=0.2).set_params(noise_variance=0.05).fit(X, y)
    assert model.noise_model_ == "varying"
    assert model.noise_variance_ < 0.2


def test_noise_is_a_share_of_the_variance_of_y_if_whitened():
    X, y = data(60)
    for whiten, variance in ((True, 0.02 * 9 * y.var()), (False, 0.02)):
        model = fixed(whiten=whiten, mean="constant").fit(X, 3 * y)
        (_, std), (_, latent) = (
            model.predict(X[:5], return_std=True, latent=latent) for latent in (False, True)
        )
        np.testing.assert_allclose(std**2 - latent**2, variance, rtol=1e-6)


def test_noise_scale_is_a_repeated_measurement():
    # Twice as precise is the same as measured twice, for the function.
    X, y = data(60)
    twice = fixed().fit(np.concatenate([X, X]), np.concatenate([y, y]))
    scaled = fixed().fit(X, y, noise_scale=np.full(60, 0.5))
    for a, b in zip(
        twice.predict(X + 0.1, return_std=True, latent=True),
        scaled.predict(X + 0.1, return_std=True, latent=True),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    with pytest.raises(ValueError, match="noise_scale: expected 60 positive"):
        fixed().fit(X, y, noise_scale=np.zeros(60))


def test_several_outputs_share_a_kernel():
    X, y = data()
    Y = np.column_stack([y, 3 * y + 1, np.cos(X[:, 1])])
    model = fixed().fit(X, Y)
    mean, std = model.predict(X[:7], return_std=True)
    assert mean.shape == std.shape == (7, 3)
    for j in range(3):
        alone = fixed().fit(X, Y[:, j])
        np.testing.assert_allclose(mean[:, j], alone.predict(X[:7]), rtol=1e-8)
    assert model.predict(X[:7], return_cov=True)[1].shape == (7, 7, 3)
    assert model.sample_y(X[:7], 5).shape == (7, 3, 5)
    assert GPRegressor(random_state=0).fit(X, Y).score(X, Y) > 0.9


def test_samples_have_the_posterior_moments():
    X, y = data(100)
    model = fixed().fit(X, y)
    X_new = X[:4] + 0.3
    mean, C = dense(X, y, X_new)
    draws = model.sample_y(X_new, 20_000, random_state=0)
    error = np.sqrt(np.diag(C) / 20_000)
    assert (abs(draws.mean(1) - mean) < 5 * error).all()
    np.testing.assert_allclose(np.cov(draws), C, atol=0.05 * np.diag(C).max())


def test_in_pipelines_and_searches():
    X, y = data(120)
    model = GPRegressor(random_state=0)
    assert make_pipeline(StandardScaler(), model).fit(X, y).score(X, y) > 0.9
    assert cross_val_score(model, X, y, cv=3).mean() > 0.8
    search = GridSearchCV(model, {"kernel": [Matern32(), RBF()]}, cv=2).fit(X, y)
    assert isinstance(search.best_estimator_.kernel_, Matern32 | RBF)
    assert clone(model).get_params()["random_state"] == 0


def test_pandas_names():
    X, y = data(50)
    frame = pd.DataFrame(X, columns=["a", "b"])
    model = GPRegressor(random_state=0).fit(frame, pd.Series(y))
    assert list(model.feature_names_in_) == ["a", "b"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["b", "a"]])


def test_same_seed_same_bits():
    X, y = data(1700)
    found = [
        GPRegressor(random_state=s, subset=1600, probes=4).fit(X, y).predict(X[:5], return_std=True)
        for s in (0, 0, 1)
    ]
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_kernel_given_is_a_start_and_stays_as_it_is():
    X, y = data(80)
    kernel = RBF(0.5).freeze("lengthscale")
    model = GPRegressor(kernel, random_state=0).fit(X, y)
    assert float(kernel.outputscale) == 1.0
    assert float(model.kernel_.lengthscale) == pytest.approx(0.5)
    assert float(model.kernel_.outputscale) != 1.0


@pytest.mark.parametrize(
    "case",
    [
        "one row",
        "constant column",
        "constant y",
        "opposite outputs",
        "duplicates",
        "more columns than rows",
    ],
)
@pytest.mark.parametrize("variance", VARIANCES)
def test_odd_data_has_defined_results(case, variance):
    X, y = data(40)
    if case == "one row":
        X, y = X[:1], y[:1]
    elif case == "constant column":
        X = np.column_stack([X, np.full(len(X), 1e6)])
    elif case == "constant y":
        y = np.full(len(y), 3.0)
    elif case == "opposite outputs":
        y = np.column_stack([y, -y])
    elif case == "duplicates":
        X, y = np.repeat(X, 3, axis=0), np.repeat(y, 3)
    else:
        X, y = np.random.default_rng(0).normal(size=(5, 30)), np.arange(5.0)
    model = GPRegressor(variance=variance, random_state=0).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std >= 0).all()
    assert np.isfinite(std).all()
    if case == "constant y":
        np.testing.assert_allclose(mean, 3.0)


def test_an_unconverged_solve_warns_with_a_remedy():
    X, y = data(2000)
    with pytest.warns(ConvergenceWarning, match=r"relative residual .* raise max_iter"):
        model = fixed(max_iter=2, rtol=1e-6, rank=10).fit(X, y)
    assert model.diagnostics_["precompute"]["status"] == "MAX_ITER"


def test_diagnostics_tell_plan_and_work_apart():
    X, y = data(120)
    seen = []
    model = GPRegressor(training="lbfgs", steps=90, on_step=seen.append, random_state=0).fit(X, y)
    (phase,) = model.diagnostics_["phases"]
    assert phase["steps_at_most"] == 90
    assert len(seen) <= phase["evaluations"] < 90
    assert "steps" not in phase
    legs = GPRegressor(random_state=0, subset=1000).fit(*data(1700)).diagnostics_["phases"]
    assert legs[-1]["steps_at_most"] == 12  # three, and nine more that must each be worth it


def test_diagnostics_have_the_share_of_pairs_that_are_culled():
    X, y = data(2200)
    near = fixed().fit(X, y).diagnostics_["culled_fraction"]
    X[::2] += 1000.0  # half of all pairs are out of the kernel's reach
    apart = fixed().fit(X, y).diagnostics_["culled_fraction"]
    assert near == 0.0
    assert 0.3 < apart <= 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kernel": "rbf"}, "kernel: expected a megagp kernel or None, got str"),
        ({"mean": "quadratic"}, "mean: expected one of"),
        ({"training": "sgd"}, "training: expected one of"),
        ({"variance": "love"}, "variance: expected one of"),
        ({"noise_floor": 0.0}, "noise_floor: expected a positive number, got 0.0"),
        ({"rtol": float("nan")}, "rtol: expected a positive number, got nan"),
        ({"probes": 0}, "probes: expected a whole number >= 1 or None, got 0"),
        ({"rank": -1}, "rank: expected a whole number >= 0 or None, got -1"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        GPRegressor(**settings).fit(*data(10))


def test_the_papers_settings():
    model = GPRegressor.paper(random_state=3)
    assert (model.rank, model.pivoting, model.training_rtol) == (100, "greedy", 1.0)
    assert model.kernel.lengthscale.ndim == 0
    X, y = data(1800)
    assert model.fit(X, y).score(X, y) > 0.9


def test_saved_and_loaded_to_the_last_bit(tmp_path):
    X, y = data(1700)
    model = GPRegressor(random_state=0, subset=1600, mean="linear").fit(pd.DataFrame(X), y)
    model.save(tmp_path / "model.mgp", extra={"unit": "m"})
    again = load(tmp_path / "model.mgp")
    assert again.extra_ == {"unit": "m"}
    assert again.log_marginal_likelihood_ == model.log_marginal_likelihood_
    assert again.diagnostics_ == json.loads(json.dumps(model.diagnostics_))
    for method in ("joint", "lanczos", "exact"):
        for a, b in zip(
            model.predict(X[:20], return_std=True, variance=method),
            again.predict(X[:20], return_std=True, variance=method),
            strict=True,
        ):
            assert np.array_equal(a, b), method


def parameters(model):
    """All that a file keeps, kernels as JSON."""
    unsaved = ("verbose", "distributed", "checkpoint", "on_step")
    found = {k: v for k, v in model.get_params().items() if k not in unsaved}
    kernel = found.pop("kernel")
    return {**found, "kernel": None if kernel is None else kernel_to_json(kernel)}


@pytest.mark.parametrize("kernel", [None, RBF(0.5).freeze("lengthscale")], ids=["default", "own"])
def test_a_loaded_model_is_the_estimator_that_was_saved(kernel, tmp_path):
    X, y = data(1700)
    X = np.exp(3 * X)  # a few values far from all others
    settings = {"subset": 1600, "mean": "linear", "neighbours": 20, "random_state": 3}
    model = GPRegressor(kernel, **settings).fit(X, y)
    model.save(tmp_path / "model.mgp")
    again = load(tmp_path / "model.mgp")
    assert parameters(again) == parameters(model)
    assert kernel_to_json(again.kernel_) == kernel_to_json(model.kernel_)
    fresh = clone(again).fit(X, y)
    assert fresh.inputs_ == again.inputs_ == ("ranks" if kernel is None else "standard")
    assert np.array_equal(fresh.predict(X[:20]), model.predict(X[:20]))


def test_settings_of_numpy_are_saved_as_numbers(tmp_path):
    X, y = data(60)
    model = GPRegressor(
        mean=np.str_("linear"),
        whiten=np.bool_(True),
        steps=np.int64(50),
        subset=np.int32(500),
        rtol=np.float32(0.01),
        max_iter=np.int64(300),
        neighbours=np.int64(20),
        checkpoint=tmp_path / "run",
        random_state=np.int64(0),
    ).fit(X, y)
    model.save(tmp_path / "model.mgp")
    again = load(tmp_path / "model.mgp")
    assert parameters(again) == parameters(model)
    assert (type(again.random_state), type(again.whiten)) == (int, bool)
    assert np.array_equal(again.predict(X), model.predict(X))


def test_files_without_the_kernel_that_was_given_have_the_learned_one(tmp_path):
    X, y = data(50)
    model = GPRegressor(random_state=0).fit(X, y)
    model.save(tmp_path / "model.mgp")
    header, tensors = read(tmp_path / "model.mgp")
    del header["kernel"]
    write(tmp_path / "old.mgp", header, tensors)
    again = load(tmp_path / "old.mgp")
    assert kernel_to_json(again.kernel) == kernel_to_json(model.kernel_)
    assert np.array_equal(again.predict(X), model.predict(X))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Header and tensors of a model of 40 points with 2 columns, inputs by rank."""
    path = tmp_path_factory.mktemp("saved") / "model.mgp"
    X, y = data(40)
    model = GPRegressor(training="none", inputs="ranks", random_state=0)
    model.fit(pd.DataFrame(X, columns=["a", "b"]), y).save(path)
    return read(path)


def changed(header, key, value):
    """The header with another value for "a.b"; ... for none at all."""
    header = json.loads(json.dumps(header))
    *path, last = key.split(".")
    inner = header
    for name in path:
        inner = inner[name]
    inner[last] = value
    if value is ...:
        del inner[last]
    return header


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model", "GPClassifier", "model: expected one of GPRegressor"),
        ("posterior", ..., "posterior: expected in the header"),
        ("posterior.kernel", ..., "kernel: expected in the header"),
        ("posterior.mean", "cubic", "mean: expected one of"),
        ("posterior.mean", "linear", "trend_coefficients: expected"),
        ("posterior.rtol", "0.01", "rtol: expected float, got str"),
        ("posterior.rtol", -1.0, "rtol: expected a positive number, got -1.0"),
        ("posterior.max_iter", 1.5, "max_iter: expected int, got float"),
        ("posterior.max_iter", 0, "max_iter: expected at least 1, got 0"),
        ("posterior.neighbours", -1, "neighbours: expected at least 0, got -1"),
        ("posterior.engine", None, "engine: expected str, got NoneType"),
        ("kernel", "RBF", "kernel: expected dict or NoneType, got str"),
        ("kernel", {}, "hyperparameters: expected in the header"),
        ("settings", [], "settings: expected dict, got list"),
        ("settings.colour", "red", "settings: expected those of GPRegressor, got .'colour'."),
        ("settings.mean", "cubic", "mean: expected one of"),
        ("settings.rtol", 0.0, "rtol: expected a positive number, got 0.0"),
        ("random_state", "0", "random_state: expected int or NoneType, got str"),
        ("noise_variance", -0.1, "noise_variance: expected a positive number, got -0.1"),
        ("log_marginal_likelihood", None, "log_marginal_likelihood: expected float"),
        ("diagnostics", [], "diagnostics: expected dict, got list"),
        ("extra", ..., "extra: expected in the header"),
        ("n_samples", True, "n_samples: expected int, got bool"),
        ("n_iter", "3", "n_iter: expected int, got str"),
        ("one_output", 1, "one_output: expected bool, got int"),
        ("feature_names", ["a"], "feature_names: expected 2 names, got 1"),
        ("feature_names", ["a", 2], "feature_names: expected 2 names"),
    ],
)
def test_headers_that_were_tampered_with_are_refused(saved, tmp_path, key, value, message):
    header, tensors = saved
    write(tmp_path / "bad.mgp", changed(header, key, value), tensors)
    with pytest.raises(StorageError, match=message):
        load(tmp_path / "bad.mgp")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("X", lambda X: X[:0], "X: expected at least one row and column, got 0 x 2"),
        ("X", lambda X: X[:, 0], "X: expected torch.float64 of shape"),
        ("X", lambda X: X.float(), "X: expected torch.float64 of shape"),
        ("X", lambda X: X[:7], "weights: expected"),
        ("X", lambda X: X[:, :1], "expected"),
        ("weights", lambda W: W[:-1], "weights: expected"),
        ("weights", lambda W: W.repeat(1, 2), "trend_coefficients: expected"),
        ("noise", lambda v: -v, "noise: expected positive variances"),
        ("noise", lambda v: 0 * v, "noise: expected positive variances"),
        ("noise", lambda v: v[:1], "noise: expected"),
        ("pivots", lambda i: i - 1, "pivots: expected indices below 40"),
        ("pivots", lambda i: i + 1, "pivots: expected indices below 40"),
        ("pivots", lambda i: i.double(), "pivots: expected torch.int64"),
        ("trend_weights", lambda G: G[:, :0], "trend_weights: expected"),
        ("trend_covariance", lambda C: C[:0], "trend_covariance: expected"),
        ("x_centre", lambda c: c[:1], "x_centre: expected"),
        ("x_scale", lambda s: 0 * s, "x_scale: expected finite numbers, scales positive"),
        ("x_scale", lambda s: -s, "x_scale: expected finite numbers, scales positive"),
        ("y_scale", lambda s: 0 * s, "y_scale: expected finite numbers, scales positive"),
        ("y_scale", lambda s: s.repeat(2), "y_scale: expected"),
        ("x_knots", lambda k: k.flip(0), "x_knots: expected increasing columns"),
        ("x_knots", lambda k: k[:0], "x_knots: expected increasing columns"),
        ("x_scores", lambda s: s[:-1], "x_scores: expected"),
    ],
)
def test_tensors_that_were_tampered_with_are_refused(saved, tmp_path, name, change, message):
    header, tensors = saved
    write(tmp_path / "bad.mgp", header, {**tensors, name: change(tensors[name])})
    with pytest.raises(StorageError, match=message):
        load(tmp_path / "bad.mgp")


def test_tensors_that_are_missing_or_not_finite_are_refused(saved, tmp_path):
    header, tensors = saved
    for name in tensors.keys() - {"x_knots"}:
        rest = {key: T for key, T in tensors.items() if key != name}
        write(tmp_path / "bad.mgp", header, rest)
        with pytest.raises(StorageError, match=f"{name}: expected among the tensors"):
            load(tmp_path / "bad.mgp")
    for name in ("x_scale", "y_scale", "x_centre", "y_centre"):
        with pytest.raises(StorageError, match=f"{name}.*expected finite"):
            GPRegressor.restore(header, {**tensors, name: tensors[name] / 0})


class Cauchy(Kernel):
    lengthscale = Positive()

    def evaluate(self, X, Z):
        return 1 / (1 + torch.cdist(X, Z).square() / self.lengthscale**2)


def test_own_kernels_are_saved_by_name_or_refused(tmp_path):
    X, y = data(30)
    model = GPRegressor(Cauchy(), random_state=0).fit(X, y)
    model.save(tmp_path / "model.mgp")
    with pytest.raises(StorageError, match=r'load\(path, kernels=\{"Cauchy": Cauchy\}\)'):
        load(tmp_path / "model.mgp")
    again = load(tmp_path / "model.mgp", kernels={"Cauchy": Cauchy})
    assert parameters(again) == parameters(model)
    kernel = Cauchy()
    kernel.table = [1.0]
    model = GPRegressor(kernel, random_state=0).fit(X, y)
    with pytest.raises(StorageError, match=r"Cauchy\.table: expected a number, text, bool or None"):
        model.save(tmp_path / "other.mgp")


def test_memory_of_many_predictions_is_bounded():
    # 300,000 points, of which an m x n block in float64 would take 7 GB.
    code = """
import resource, numpy as np
from megagp import GPRegressor
from megagp.kernels import Matern32
X = np.random.default_rng(0).normal(size=(3000, 2))
model = GPRegressor(Matern32(), training="none", random_state=0, neighbours=16).fit(X, X[:, 0])
model.predict(X[:100], return_std=True)
X_new = np.random.default_rng(1).normal(size=(300_000, 2))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model.predict(X_new)
model.predict(X_new[:20_000], return_std=True)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 500e6


def test_joint_covariances_are_asked_for_within_memory(monkeypatch):
    X, y = data(100)
    model = fixed().fit(X, y)
    monkeypatch.setattr("megagp.posterior.exact_variance.SOLUTIONS_BUDGET", 4 * 100 * 20)
    assert model.predict(X[:20], return_cov=True)[1].shape == (20, 20)
    for ask in (lambda: model.predict(X[:21], return_cov=True), lambda: model.sample_y(X[:21])):
        with pytest.raises(ValueError, match=r"at most 20 rows .* given 100 points, got 21"):
            ask()


def test_long_fits_say_beforehand_what_they_will_take(monkeypatch, capsys):
    monkeypatch.setattr("megagp.estimators.exact.FORECAST_FROM", 100)
    X, y = data(120)
    GPRegressor(training="none", random_state=0).fit(X, y)
    assert capsys.readouterr().err == ""
    GPRegressor(training="none", random_state=0, verbose=1).fit(X, y)
    said = capsys.readouterr().err
    assert "megagp: forecast for 120 x 2 on 1 device" in said
    assert "memory per device" in said
