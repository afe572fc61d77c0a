"""SGPRegressor and SVGPRegressor: the contract, and predictions against dense float64."""

import json
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import reference
from megagp import GPRegressor, SGPRegressor, SVGPRegressor, load
from megagp.kernels import RBF, Matern32
from megagp.storage import StorageError, read, write

NOISE, JITTER = 0.02, 1e-6
SMALL = [
    SGPRegressor(inducing_points=30, steps=20, random_state=0),
    SVGPRegressor(inducing_points=30, epochs=20, batch_size=50, learning_rate=0.05, random_state=0),
]


def data(n=300, d=2, seed=0, noise=0.1):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, d))
    return X, np.sin(2 * X[:, 0]) + X.sum(1) ** 2 / 4 + noise * rng.normal(size=n)


def fixed(**settings):
    """Hyperparameters given, none learned, inputs and outputs as they are."""
    settings = {"mean": "zero", "whiten": False, "training": "none", **settings}
    kernel = Matern32([0.7, 1.3], 1.5)
    return SGPRegressor(kernel, noise_variance=NOISE, jitter=JITTER, random_state=0, **settings)


def dense(model, X, y, X_new):
    """Titsias 2009, eq. 6: Σ = (K_mm + K_mn K_nm / σ²)⁻¹, mean K_*m Σ K_mn y / σ²."""
    kernel, Z = Matern32([0.7, 1.3], 1.5), model.inducing_points_
    K = reference.matrix(kernel, Z, Z)
    K += JITTER * np.mean(np.diag(K)) * np.eye(len(Z))
    C, K_new = reference.matrix(kernel, Z, X), reference.matrix(kernel, X_new, Z)
    inner = np.linalg.inv(K + C @ C.T / NOISE)
    prior = reference.matrix(kernel, X_new, X_new)
    cov = prior - K_new @ np.linalg.solve(K, K_new.T) + K_new @ inner @ K_new.T
    return K_new @ inner @ C @ y / NOISE, cov


@parametrize_with_checks(SMALL)
def test_scikit_learn(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks warn about themselves
        check(estimator)


def test_sgpr_against_dense():
    X, y = data()
    X_new = data(40, seed=1)[0]
    model = fixed(inducing_points=25).fit(X, y)
    mean, C = dense(model, X, y, X_new)
    found, std = model.predict(X_new, return_std=True)
    np.testing.assert_allclose(found, mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(std, np.sqrt(np.diag(C) + NOISE), rtol=1e-6)
    joint = model.predict(X_new, return_cov=True, latent=True)[1]
    np.testing.assert_allclose(joint, C, atol=1e-7)


def test_with_all_points_inducing_it_is_exact():
    X, y = data(120)
    X_new = data(30, seed=1)[0]
    kernel = Matern32([0.7, 1.3], 1.5)
    settings = {"mean": "linear", "noise_variance": NOISE, "random_state": 0, "training": "none"}
    exact = GPRegressor(kernel, **settings).fit(X, y)
    model = SGPRegressor(kernel, inducing_points=120, jitter=1e-10, **settings).fit(X, y)
    for a, b in zip(
        model.predict(X_new, return_std=True), exact.predict(X_new, return_std=True), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert model.log_marginal_likelihood_ <= exact.log_marginal_likelihood_
    assert model.log_marginal_likelihood_ == pytest.approx(exact.log_marginal_likelihood_, abs=0.01)


@pytest.mark.parametrize("training", ["lbfgs", "adam"])
def test_sgpr_learns(training):
    X, y = data()
    start = SGPRegressor(inducing_points=20, training="none", random_state=0).fit(X, y)
    model = SGPRegressor(inducing_points=20, training=training, steps=40, random_state=0).fit(X, y)
    assert model.log_marginal_likelihood_ > start.log_marginal_likelihood_ + 50
    X_new, y_new = data(100, seed=1)
    assert np.sqrt(np.mean((model.predict(X_new) - y_new) ** 2)) < 0.15
    assert not np.allclose(model.inducing_points_, start.inducing_points_)
    held = SGPRegressor(inducing_points=20, learn_inducing=False, steps=5, random_state=0)
    np.testing.assert_allclose(held.fit(X, y).inducing_points_, start.inducing_points_)


@pytest.mark.parametrize(
    ("variational", "positive"), [("natural", "log"), ("adam", "log"), ("adam", "softplus")]
)
def test_svgp_learns_and_polishing_raises_the_bound(variational, positive):
    X, y = data()
    settings = {
        "inducing_points": 20,
        "variational": variational,
        "positive": positive,
        "epochs": 60,
        "batch_size": 100,
        "learning_rate": 0.05,
        "random_state": 0,
    }
    rough = SVGPRegressor(polish=False, **settings).fit(X, y)
    model = SVGPRegressor(**settings).fit(X, y)
    X_new, y_new = data(100, seed=1)
    for each in (rough, model):
        mean, std = each.predict(X_new, return_std=True)
        assert np.sqrt(np.mean((mean - y_new) ** 2)) < 0.2
        assert np.mean(abs(mean - y_new) < 2 * std) > 0.85
    # The same training, but for the last pass.
    assert float(model.kernel_.outputscale) == float(rough.kernel_.outputscale)
    assert model.n_iter_ == 180
    assert [p["phase"] for p in model.diagnostics_["phases"]][-1] == "polish"


def test_several_outputs_share_a_kernel():
    X, y = data()
    Y = np.column_stack([y, 3 * y + 1, np.cos(X[:, 1])])
    model = fixed(inducing_points=25).fit(X, Y)
    mean, std = model.predict(X[:7], return_std=True)
    assert mean.shape == std.shape == (7, 3)
    for j in range(3):
        alone = fixed(inducing_points=25).fit(X, Y[:, j])
        np.testing.assert_allclose(mean[:, j], alone.predict(X[:7]), rtol=1e-7, atol=1e-9)
    stochastic = clone(SMALL[1]).fit(X, Y)
    assert stochastic.predict(X[:7]).shape == (7, 3)


@pytest.mark.parametrize("model", SMALL, ids=["sgpr", "svgp"])
def test_saved_and_loaded_to_the_last_bit(model, tmp_path):
    X, y = data(100)
    model = clone(model).set_params(mean="linear").fit(pd.DataFrame(X, columns=["a", "b"]), y)
    model.save(tmp_path / "model.mgp", extra={"unit": "m"})
    again = load(tmp_path / "model.mgp")
    assert type(again) is type(model)
    assert again.extra_ == {"unit": "m"}
    assert again.get_params() == model.get_params()
    assert again.kernel is None
    assert (again.n_samples_, again.n_iter_) == (model.n_samples_, model.n_iter_)
    assert again.log_marginal_likelihood_ == model.log_marginal_likelihood_
    assert again.diagnostics_ == json.loads(json.dumps(model.diagnostics_))
    frame = pd.DataFrame(X[:20], columns=["a", "b"])
    for a, b in zip(
        model.predict(frame, return_std=True), again.predict(frame, return_std=True), strict=True
    ):
        assert np.array_equal(a, b)
    again.fit(X, y)  # the settings came along


def test_damaged_files_are_refused(tmp_path):
    clone(SMALL[0]).fit(*data(60)).save(tmp_path / "model.mgp")
    header, tensors = read(tmp_path / "model.mgp")
    for name, changed in (("L", -tensors["L"]), ("R", tensors["R"][:5]), ("Z", tensors["Z"][:0])):
        write(tmp_path / "bad.mgp", header, {**tensors, name: changed})
        with pytest.raises(StorageError, match=name):
            load(tmp_path / "bad.mgp")


@pytest.mark.parametrize("model", SMALL, ids=["sgpr", "svgp"])
@pytest.mark.parametrize("case", ["one row", "constant column", "constant y", "duplicates"])
def test_odd_data_has_defined_results(model, case):
    X, y = data(40)
    if case == "one row":
        X, y = X[:1], y[:1]
    elif case == "constant column":
        X = np.column_stack([X, np.full(len(X), 1e6)])
    elif case == "constant y":
        y = np.full(len(y), 3.0)
    else:
        X, y = np.repeat(X, 3, axis=0), np.repeat(y, 3)
    mean, std = clone(model).fit(X, y).predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()


def test_without_training_the_noise_is_the_one_given():
    model = fixed(noise_floor=0.1).set_params(noise_variance=1e-3).fit(*data(60))
    assert model.noise_variance_ == pytest.approx(1e-3)


@pytest.mark.parametrize("model", SMALL, ids=["sgpr", "svgp"])
def test_same_seed_same_bits(model):
    X, y = data(150)
    a, b = (clone(model).fit(X, y).predict(X[:5]) for _ in range(2))
    assert np.array_equal(a, b)
    other = clone(model).set_params(random_state=1).fit(X, y)
    assert not np.array_equal(a, other.predict(X[:5]))


def test_in_a_pipeline_with_another_kernel():
    X, y = data(120)
    model = clone(SMALL[0]).set_params(kernel=RBF(0.5).freeze("lengthscale"))
    pipeline = make_pipeline(StandardScaler(), model).fit(X, y)
    assert pipeline.score(X, y) > 0.9
    assert float(pipeline[-1].kernel_.lengthscale) == pytest.approx(0.5)


@pytest.mark.parametrize("model", SMALL, ids=["sgpr", "svgp"])
def test_progress_and_jitter_are_reported(model, capsys):
    fitted = clone(model).set_params(verbose=1).fit(*data(80))
    assert "megagp: train" in capsys.readouterr().err
    jitter = fitted.diagnostics_["jitter"]
    assert jitter["largest_share"] >= jitter["asked_share"] == 1e-6
    assert jitter["added"] > 0


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (SGPRegressor(kernel="rbf"), "kernel: expected a megagp kernel or None, got str"),
        (SGPRegressor(training="sgd"), "training: expected one of"),
        (SGPRegressor(inducing_start="grid"), "inducing_start: expected one of"),
        (SGPRegressor(inducing_points=0), "inducing_points: expected a whole number >= 1, got 0"),
        (SGPRegressor(jitter=0.0), "jitter: expected a positive number, got 0.0"),
        (SVGPRegressor(variational="exact"), "variational: expected one of"),
        (SVGPRegressor(positive="square"), "positive: expected one of"),
        (SVGPRegressor(natural_rate=2.0), "natural_rate: expected a number up to 1, got 2.0"),
        (SVGPRegressor(epochs=0), "epochs: expected a whole number >= 1, got 0"),
    ],
)
def test_settings_are_checked(model, message):
    with pytest.raises((ValueError, TypeError), match=message):
        model.fit(*data(10))


def test_the_papers_settings():
    sgpr, svgp = SGPRegressor.paper(steps=3), SVGPRegressor.paper(epochs=1)
    assert (sgpr.inducing_points, sgpr.training, sgpr.learning_rate) == (512, "adam", 0.1)
    assert SGPRegressor.paper().steps == SVGPRegressor.paper().epochs == 100
    assert (svgp.inducing_points, svgp.batch_size, svgp.learning_rate) == (1024, 1024, 0.01)
    assert svgp.positive == "softplus"
    assert sgpr.kernel.lengthscale.ndim == svgp.kernel.lengthscale.ndim == 0
    X, y = data(60)
    for model in (sgpr, svgp):
        assert np.isfinite(model.fit(X, y).predict(X)).all()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("n", "m", "gigabytes"), [(1_000_000, 512, 6), (50_000, 4096, 6)])
def test_memory_is_bounded(n, m, gigabytes):
    """K(X, Z) alone would take 4.1 GB and 1.6 GB; torch and the data are in the count."""
    code = f"""
import resource
from megagp import SGPRegressor
from megagp.datasets import robot_arm
X, y = robot_arm({n}, 6)
model = SGPRegressor(inducing_points={m}, training="adam", steps=1, inducing_start="random",
                     random_state=0).fit(X, y)
model.predict(X[:100_000], return_std=True)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < gigabytes * 1e9
