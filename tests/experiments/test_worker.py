"""What a run measures, against the estimators used by hand."""

import numpy as np
import pytest
import torch

from megagp import GPRegressor
from megagp.datasets import robot_arm, split
from megagp.experiments import METHODS, Run
from megagp.experiments.methods import fit, regressor
from megagp.experiments.trace import Recorder, trace
from megagp.experiments.worker import measure, prepare
from megagp.scores import score

DATA = "robot_arm:300"


def by_hand(seed=0):
    """Split and whitened with NumPy."""
    parts = split(*robot_arm(300, joints=6), random_state=seed)
    X, y = parts.X_train, parts.y_train
    white = [
        (part - X.mean(0)) / X.std(0) if part.ndim == 2 else (part - y.mean()) / y.std()
        for part in parts
    ]
    return type(parts)(*white)


def test_data_are_whitened_by_the_training_part():
    for found, expected in zip(prepare(DATA, 3, None), by_hand(3), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_a_subset_is_of_the_training_part_alone():
    whole, some = prepare(DATA, 0, None), prepare(DATA, 0, 50)
    assert (len(some.X_train), len(some.X_val), len(some.X_test)) == (50, 48, 60)
    np.testing.assert_allclose(some.X_train.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(some.y_train.std(), 1)
    assert len(prepare(DATA, 0, 10**6).X_train) == len(whole.X_train)


def test_a_subset_needs_not_all_test_points(monkeypatch):
    monkeypatch.setattr("megagp.experiments.worker.SUBSET_TEST", 20)
    whole, some = prepare(DATA, 0, None), prepare(DATA, 0, 50)
    assert (len(some.X_test), len(some.y_test)) == (20, 20)
    assert len(whole.X_test) == len(prepare(DATA, 0, 10**6).X_test) == 60


def test_scores_are_those_of_the_estimator():
    data = by_hand()
    found = measure(Run("table1", DATA, "exact", 0, None, {"ard": False}))
    model = GPRegressor(ard=False, random_state=0).fit(data.X_train, data.y_train)
    mean, std = model.predict(data.X_test, return_std=True)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((mean - data.y_test) ** 2)), rel=1e-6)
    z = (data.y_test - mean) / std
    nll = np.mean(0.5 * z**2 + np.log(std) + 0.5 * np.log(2 * np.pi))
    assert found["nll"] == pytest.approx(nll, rel=1e-5)
    assert found["hyperparameters"]["noise_variance"] == pytest.approx(model.noise_variance_)
    nominal, observed = np.array(found["calibration"]).T
    assert observed[nominal == 0.95] == pytest.approx(found["coverage"])
    assert (np.diff(observed) >= 0).all()


@pytest.mark.parametrize("suite", ["fig1", "fig5"])
def test_traces_end_where_training_ends(suite):
    settings = {"ard": False, "training": "adam", "steps": 6}
    found = measure(Run(suite, DATA, "exact", 0, None, settings))
    steps = found["trace"]
    assert [point["step"] for point in steps] == [1, 2, 3, 4, 5, 6]
    assert all(np.diff([point["seconds"] for point in steps]) > 0)
    # A step may not have been an improvement: the last hyperparameters are the best ones.
    assert steps[-1]["rmse"] == pytest.approx(found["rmse"], rel=1e-6)
    assert steps[-1]["nll"] == pytest.approx(found["nll"], rel=1e-5)
    assert steps[0]["rmse"] != steps[-1]["rmse"]


def test_traces_take_the_inputs_that_training_took():
    data, recorder = prepare(DATA, 0, None), Recorder()
    settings = {"training": "adam", "steps": 2, "random_state": 0}
    model = GPRegressor(inputs="ranks", on_step=recorder, **settings)
    mean = model.fit(data.X_train, data.y_train).predict(data.X_test)
    model.set_params(inputs="auto")  # as if that had chosen them
    found = trace(recorder, model, data)
    assert found[-1]["rmse"] == pytest.approx(np.sqrt(np.mean((mean - data.y_test) ** 2)), rel=1e-6)


def test_traces_know_of_the_noise_of_places():
    rng = np.random.default_rng(0)
    points, place = rng.uniform(-2, 2, size=(60, 2)), rng.integers(60, size=400)
    std = np.where(np.arange(60) % 5 == 0, 0.5, 0.0)[place]
    X, effect = points[place], 0.6 * rng.normal(size=60)
    data = split(X, X[:, 0] + effect[place] + std * rng.normal(size=400), random_state=0)
    recorder = Recorder()
    settings = {"training": "adam", "steps": 2, "random_state": 0, "on_step": recorder}
    model = GPRegressor(**settings).fit(data.X_train, data.y_train)
    assert model.place_variance_ > 0
    mean, std = model.predict(data.X_test, return_std=True)
    expected = score(data.y_test, mean, std)
    found = trace(recorder, model, data)[-1]
    assert found["rmse"] == pytest.approx(expected.rmse, rel=1e-6)
    assert found["nll"] == pytest.approx(expected.nll, rel=1e-5)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "lightgbm"])
@pytest.mark.parametrize("ard", [True, False])
def test_lengthscales_are_as_the_table_says(method, ard):
    model = regressor(method, "pol", 3, 0, {"ard": ard})
    values = model._start_kernel(torch.zeros(5, 3, dtype=torch.float64)).values()
    lengthscales = [value for name, value in values.items() if "lengthscale" in name]
    assert lengthscales
    assert all(value.numel() == (3 if ard else 1) for value in lengthscales)


def test_the_papers_noise_floor():
    assert regressor("exact-paper", "houseelectric", 3, 0, {}).noise_floor == 0.1
    assert regressor("exact-paper", "pol", 3, 0, {}).noise_floor == 1e-4
    given = regressor("exact-paper", "houseelectric", 3, 0, {"noise_floor": 0.2})
    assert given.noise_floor == 0.2


def test_boosting_beats_a_constant():
    pytest.importorskip("lightgbm")
    data = prepare("robot_arm:1000", 0, None)
    fitted = fit("lightgbm", "robot_arm:1000", data, 0, {"num_threads": 1})
    mean, std = fitted.predict(data.X_test)
    assert np.sqrt(np.mean((mean - data.y_test) ** 2)) < 0.6
    assert np.ptp(std) == 0


def test_unknown_methods_and_settings_are_refused():
    data = prepare(DATA, 0, None)
    with pytest.raises(ValueError, match="method: expected one of exact"):
        fit("magic", DATA, data, 0, {})
    with pytest.raises(TypeError, match="colour"):
        fit("exact", DATA, data, 0, {"colour": "red"})
