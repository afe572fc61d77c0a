"""Training as a whole: phases, hyperparameters found, seeds."""

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

import reference
from megagp.kernels import RBF, Hyperparameter, Matern32
from megagp.mean import basis
from megagp.progress import Progress
from megagp.training import METHODS, Recipe, Solving, train
from megagp.training.recipe import GROWTH

ALL_DENSE, NEVER_DENSE = 10**9, 0


def draw(kernel, n, noise, d=2, seed=0):
    """X and Y from the GP itself."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, d))
    C = np.linalg.cholesky(reference.matrix(kernel, X, X) + noise * np.eye(n))
    return torch.from_numpy(X), torch.from_numpy(C @ rng.normal(size=(n, 1)))


def fit(X, Y, kernel, recipe, dense_below, noise=0.1, mean="zero", floor=1e-5, seed=0, **solving):
    noise = Hyperparameter("noise_variance", noise)
    trained = train(
        X,
        Y,
        basis(X, mean),
        kernel,
        noise,
        torch.ones(len(X), dtype=torch.float64),
        recipe=recipe,
        solving=Solving(dense_below=dense_below, **solving),
        noise_floor=floor,
        seed=seed,
        progress=Progress(0),
    )
    return trained, float(noise.value)


def exact_loss(X, Y, kernel, noise):
    arrays = X.numpy(), Y.numpy(), np.zeros((len(X), 0))
    return -reference.log_likelihood(kernel, np.full(len(X), noise), *arrays) / len(X)


# ---- phases ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, [(1, "lbfgs")]),
        (1500, [(1500, "lbfgs")]),
        (1501, [(700, "lbfgs"), (1025, "lbfgs"), (1501, "lbfgs")]),
        (10_000, [(700, "lbfgs"), (2646, "lbfgs"), (10_000, "lbfgs")]),
        (50_000, [(700, "lbfgs"), (5916, "lbfgs"), (50_000, "lbfgs")]),
        (100_000, [(700, "lbfgs"), (3659, "lbfgs"), (19_129, "lbfgs"), (100_000, "lbfgs")]),
    ],
)
def test_pretraining_by_size(n, expected):
    assert [(p.size, p.optimiser) for p in Recipe().phases(n)] == expected


def test_no_leg_is_many_times_the_last():
    sizes = [p.size for p in Recipe().phases(10**7)]
    assert sizes[-1] == 10**7
    assert max(np.divide(sizes[1:], sizes[:-1])) <= GROWTH + 0.01
    assert [p.size for p in Recipe(subset=900).phases(10**7)] == [700, 900, *sizes[2:]]


def test_phases_by_method():
    assert Recipe("none").phases(10**6) == []
    for method in ("adam", "lbfgs"):
        (phase,) = Recipe(method, steps=7).phases(10**6)
        assert (phase.size, phase.optimiser, phase.steps) == (10**6, method, 7)
    paper = Recipe("paper").phases(10**6)
    assert [(p.size, p.steps) for p in paper] == [(10_000, 10), (10_000, 10), (10**6, 3)]
    assert [p.optimiser for p in paper] == ["lbfgs", "adam", "adam"]
    for phases in (paper, Recipe().phases(10**6)):
        names = [p.name for p in phases]
        assert len(set(names)) == len(names)  # Progress finds phases by name


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs(method):
    X, Y = draw(Matern32(0.8), 120, 0.1)
    recipe = Recipe(method, steps=3, subset=80, dense_below=NEVER_DENSE)
    kernel = Matern32([1.0, 1.0])
    trained, noise = fit(X, Y, kernel, recipe, NEVER_DENSE, mean="constant")
    assert trained.objective.last is not None
    assert len(trained.objective.Y) == 120
    assert float(trained.objective.covariance().noise[0]) == noise
    assert [p.size for p in trained.phases] == [p.size for p in recipe.phases(120)]
    assert all(np.isfinite(p.loss) and p.tally.evaluations > 0 for p in trained.phases)
    # The last evaluation is of the hyperparameters that are left.
    again = trained.objective(trained.objective.parameters.get(), 10**6)[0]
    assert -trained.objective.last.value / 120 == pytest.approx(again, abs=0.2)


# ---- what is not to be trained --------------------------------------------------------------


def test_none_takes_the_kernel_as_given():
    """Even where it lies beyond the bounds of training."""
    X, Y = draw(Matern32(0.8), 50, 0.1)
    kernel = Matern32(5e4, 3e4)
    trained, noise = fit(X, Y, kernel, Recipe("none"), ALL_DENSE)
    assert float(kernel.lengthscale) == pytest.approx(5e4, rel=1e-12)
    assert float(kernel.outputscale) == pytest.approx(3e4, rel=1e-12)
    assert noise == pytest.approx(0.1, rel=1e-12)
    loss = exact_loss(X, Y, kernel, noise)
    assert -trained.objective.last.value / 50 == pytest.approx(loss, rel=1e-7)


def test_all_frozen():
    X, Y = draw(Matern32(0.8), 50, 0.1)
    noise = Hyperparameter("noise_variance", 0.1)
    noise.frozen = True
    trained = train(
        X,
        Y,
        basis(X, "zero"),
        Matern32(0.5).freeze(),
        noise,
        torch.ones(50, dtype=torch.float64),
        recipe=Recipe(),
        solving=Solving(),
        noise_floor=1e-4,
        seed=0,
        progress=Progress(0),
    )
    assert trained.phases == []
    assert trained.objective.last is not None


def test_one_frozen_stays_while_others_move():
    X, Y = draw(RBF(0.8, 2.0), 100, 0.1)
    kernel = RBF([0.8, 0.8], 1.0).freeze("outputscale")
    fit(X, Y, kernel, Recipe(), ALL_DENSE)
    assert float(kernel.outputscale) == 1
    assert not np.allclose(kernel.lengthscale.numpy(), 0.8)


def test_no_likelihood_as_given():
    X = torch.zeros(5, 1, dtype=torch.float64)
    Y = torch.ones(5, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match="expected a finite likelihood at the starting"):
        fit(X, Y, RBF(), Recipe("none"), ALL_DENSE, noise=1e-30)


# ---- what is found --------------------------------------------------------------------------

# Each with scikit-learn's counterpart, to start from the same place.
MODELS = {
    "matern32": (
        lambda: Matern32(1.0, 1.0),
        lambda: sk.ConstantKernel(1.0) * sk.Matern(1.0, nu=1.5) + sk.WhiteKernel(0.1),
        Matern32(0.7, 1.5),
    ),
    "rbf-ard": (
        lambda: RBF([1.0, 1.0], 1.0),
        lambda: sk.ConstantKernel(1.0) * sk.RBF([1.0, 1.0]) + sk.WhiteKernel(0.1),
        RBF([0.5, 1.2], 1.5),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_reaches_scikit_learns_optimum(name):
    start, counterpart, truth = MODELS[name]
    X, Y = draw(truth, 300, 0.05)
    kernel = start()
    trained, noise = fit(X, Y, kernel, Recipe(), ALL_DENSE)
    peer = GaussianProcessRegressor(counterpart()).fit(X.numpy(), Y.numpy()[:, 0])
    best = -peer.log_marginal_likelihood_value_ / 300
    assert exact_loss(X, Y, kernel, noise) <= best + 1e-4
    assert -trained.objective.last.value / 300 == pytest.approx(best, abs=1e-3)
    np.testing.assert_allclose(kernel.lengthscale, peer.kernel_.k1.k2.length_scale, rtol=0.05)
    assert noise == pytest.approx(peer.kernel_.k2.noise_level, rel=0.05)


@pytest.mark.parametrize("name", MODELS)
def test_recovers_what_made_the_data(name):
    """Within 3 standard deviations, by the curvature of the likelihood at the optimum."""
    start, _, truth = MODELS[name]
    n, noise = 600, 0.05
    X, Y = draw(truth, n, noise, seed=3)
    trained, _ = fit(X, Y, start(), Recipe(), ALL_DENSE)
    f = trained.objective
    theta, h = f.parameters.get(), 1e-3
    sides = [
        [f(theta + s * h * np.eye(len(theta))[i])[1] for s in (1, -1)] for i in range(len(theta))
    ]
    hessian = n * np.array([(up - down) / (2 * h) for up, down in sides])
    deviation = np.sqrt(np.diagonal(np.linalg.inv(0.5 * (hessian + hessian.T))))
    true = np.log(
        np.concatenate([np.atleast_1d(truth.lengthscale), [float(truth.outputscale), noise]])
    )
    assert (np.abs(theta - true) < 3 * deviation).all()
    assert deviation.max() < 1  # so that the above says something


def test_stochastic_training_comes_close_to_the_dense_optimum():
    truth, n = Matern32([0.5, 1.2], 1.5), 600
    X, Y = draw(truth, n, 0.05)
    dense_kernel, kernel = Matern32([1.0, 1.0]), Matern32([1.0, 1.0])
    _, dense_noise = fit(X, Y, dense_kernel, Recipe(), ALL_DENSE)
    best = exact_loss(X, Y, dense_kernel, dense_noise)
    start = exact_loss(X, Y, kernel, 0.1)
    recipe = Recipe(subset=400, dense_below=NEVER_DENSE)
    trained, noise = fit(X, Y, kernel, recipe, NEVER_DENSE, rank=100)
    loss = exact_loss(X, Y, kernel, noise)
    assert [p.optimiser for p in trained.phases] == ["lbfgs", "lbfgs"]
    assert loss - best < 0.02
    assert loss - best < 0.2 * (start - best)


def test_same_seed_same_bits():
    X, Y = draw(Matern32(0.7), 150, 0.05)
    recipe = Recipe(subset=100, dense_below=NEVER_DENSE)
    found = []
    for seed in (1, 1, 2):
        kernel = Matern32([1.0, 1.0])
        _, noise = fit(X, Y, kernel, recipe, NEVER_DENSE, seed=seed, rank=20)
        found.append([*kernel.lengthscale.tolist(), float(kernel.outputscale), noise])
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_one_point():
    X, Y = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    trained, noise = fit(X, Y, Matern32(), Recipe(), ALL_DENSE, mean="constant")
    assert np.isfinite(trained.objective.last.value)
    assert noise >= 1e-5 * (1 - 1e-9)
