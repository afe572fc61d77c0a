"""The likelihood decides what of an input counts."""

import numpy as np
import torch

from megagp import GPRegressor, load
from megagp.kernels import Hyperparameter, Matern32
from megagp.training import Solving, choose_representation, representation


def chosen(representations, Y):
    kernel, noise = Matern32(np.ones(2)), Hyperparameter("noise_variance", 0.1)
    before = kernel.values()["lengthscale"].clone()
    found = choose_representation(
        [torch.from_numpy(X) for X in representations],
        torch.from_numpy(Y)[:, None],
        kernel,
        noise,
        torch.ones(len(Y), dtype=torch.float64),
        mean="constant",
        solving=Solving(),
        noise_floor=1e-4,
        seed=0,
        subset=10_000,
    )
    assert torch.equal(kernel.values()["lengthscale"], before)
    assert float(noise.value) == np.float64(np.exp(np.log(0.1)))
    index, started = found
    assert started.evaluations > 1
    assert np.isfinite(started.loss)
    return index


def skewed(n, seed=0):
    """Inputs of which most are tiny and a few huge, and y smooth in their logarithms."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, 2))
    y = np.sin(2 * Z[:, 0]) + np.cos(Z[:, 1]) + 0.05 * rng.normal(size=n)
    return np.exp(3 * Z), Z, y


def test_the_one_in_which_y_is_smooth():
    X, Z, y = skewed(900)
    X = (X - X.mean(0)) / X.std(0)
    assert chosen((X, Z), y) == 1
    assert chosen((Z, X), y) == 0
    assert chosen((Z, Z), y) == 1  # no difference: not the first


def test_more_points_decide_where_few_cannot(monkeypatch):
    """Here few points see two inputs, of which many see that one is blurred."""
    sizes, seen = [], representation.Objective

    def objective(X, *rest, **settings):
        sizes.append(len(X))
        return seen(X, *rest, **settings)

    monkeypatch.setattr(representation, "Objective", objective)
    X, Z, y = skewed(3000)
    assert chosen(((X - X.mean(0)) / X.std(0), Z), y) == 1
    assert sizes == [700, 700]
    sizes.clear()
    blurred = Z + 0.01 * np.random.default_rng(1).normal(size=Z.shape)
    assert chosen((blurred, Z), y) == 1
    assert sizes == [700, 700, 1449, 1449]


def test_a_fit_takes_ranks_where_they_help_and_keeps_them(tmp_path):
    X, Z, y = skewed(1900)
    model = GPRegressor(random_state=0).fit(X[:1600], y[:1600])
    plain = GPRegressor(random_state=0, inputs="standard").fit(X[:1600], y[:1600])
    assert (model.inputs_, plain.inputs_) == ("ranks", "standard")
    # As good as on the inputs that y is smooth in, and far better than without.
    best = GPRegressor(random_state=0, inputs="standard").fit(Z[:1600], y[:1600])
    error, worse, least = (
        np.sqrt(np.mean((m.predict(A[1600:]) - y[1600:]) ** 2))
        for m, A in ((model, X), (plain, X), (best, Z))
    )
    assert error < 1.2 * least
    assert error < 0.7 * worse
    model.save(tmp_path / "model.mgp")
    again = load(tmp_path / "model.mgp")
    assert again.inputs_ == "ranks"
    for a, b in zip(
        model.predict(X[1600:], return_std=True),
        again.predict(X[1600:], return_std=True),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_smooth_inputs_stay_as_they_are():
    _, Z, y = skewed(1700)
    assert GPRegressor(random_state=0).fit(Z, y).inputs_ == "standard"


def test_best_quality_weighs_a_rough_part_and_a_smooth_one():
    _, Z, y = skewed(1000)
    rough = np.abs(Z[:, 0]) + y
    usual, best = (
        GPRegressor(random_state=0, quality=q).fit(Z[:700], rough[:700]) for q in ("usual", "best")
    )
    assert best.log_marginal_likelihood_ >= usual.log_marginal_likelihood_ - 1
    assert sorted(best.kernel_.values()) == [
        "0.lengthscale",
        "0.outputscale",
        "1.lengthscale",
        "1.outputscale",
    ]
