"""The joint bound: never below the exact variance, equal where nothing is left out."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import reference
from megagp.kernels import RBF, Constant, Kernel, Linear, Matern12, Matern32, Positive
from megagp.mean import basis
from megagp.neighbours import Neighbours
from megagp.posterior.cells import Cells
from megagp.posterior.kept_factors import KeptFactors
from megagp.posterior.subset_variance import (
    PER_MEMBER,
    SHRINK,
    WAYS,
    SubsetVariance,
    Way,
    extrapolated,
)

D = 3
CASES = reference.kernel_cases(D)


class Own(Kernel):
    lengthscale = Positive()

    def evaluate(self, X, Z):
        # torch.cdist takes stacks too, so refuse them: the package may not assume as much.
        assert X.ndim == 2
        return 1 / (1 + torch.cdist(X, Z).square() / self.lengthscale**2)


def points(n, d=D, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)))


def exact(kernel, X, noise, Z):
    """k** - k*ᵀ K̂⁻¹ k*, as it is written."""
    X, Z = X.numpy(), Z.numpy()
    K_hat = reference.matrix(kernel, X, X) + np.diag(noise.numpy())
    K = reference.matrix(kernel, X, Z)
    prior = np.array([reference.matrix(kernel, z[None], z[None])[0, 0] for z in Z])
    return prior - np.sum(K * np.linalg.solve(K_hat, K), axis=0), prior


@pytest.mark.parametrize("noise_variance", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("own", [True, False], ids=["own", "cells"])
def test_never_below_the_exact_variance(own, name, noise_variance):
    kernel = CASES[name]
    X = torch.cat([points(150), points(20)])  # the first 20 twice
    noise = torch.full((len(X),), noise_variance, dtype=torch.float64)
    Z = torch.cat([points(30, seed=1), X[::17]])
    found = SubsetVariance(
        X, kernel, noise, torch.arange(0, 170, 9), neighbours=Way(own, 60)
    ).latent(Z)
    truth, prior = exact(kernel, X, noise, Z)
    assert np.all(found.numpy() >= truth - 1e-8 * prior)
    assert np.all(found.numpy() <= prior)


def universal(kernel, X, noise, Z, mean):
    """The same with the mean's coefficients unknown: uᵀ (Hᵀ K̂⁻¹ H)⁻¹ u more."""
    latent, prior = exact(kernel, X, noise, Z)
    H, h = basis(X, mean).numpy(), basis(Z, mean).numpy()
    K_hat = reference.matrix(kernel, X.numpy(), X.numpy()) + np.diag(noise.numpy())
    G = np.linalg.solve(K_hat, H)
    U = h - reference.matrix(kernel, Z.numpy(), X.numpy()) @ G
    return latent + np.sum(U @ np.linalg.inv(H.T @ G) * U, axis=1), prior


@pytest.mark.parametrize("mean", ["constant", "linear"])
@pytest.mark.parametrize("noise_variance", [1e-4, 1.0])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("own", [True, False], ids=["own", "cells"])
def test_never_below_the_exact_variance_with_an_unknown_mean(own, name, noise_variance, mean):
    kernel = CASES[name]
    X = torch.cat([points(150), points(20)])
    noise = noise_of(X, noise_variance)
    Z = torch.cat([points(30, seed=1), 5 * points(5, seed=2), X[::17]])
    settings = {"pivots": torch.arange(0, 170, 9), "neighbours": Way(own, 60)}
    found = SubsetVariance(X, kernel, noise, **settings, mean=mean).latent(Z).numpy()
    plain = SubsetVariance(X, kernel, noise, **settings).latent(Z).numpy()
    truth, prior = universal(kernel, X, noise, Z, mean)
    size = float(prior.max())
    assert np.all(found >= truth * (1 - 1e-6) - 1e-7 * size)
    assert np.all(found >= plain * (1 - 5e-3) - 1e-7 * size)


@pytest.mark.parametrize("mean", ["constant", "linear"])
@pytest.mark.parametrize("pivots", [0, 1, 40, 120])
@pytest.mark.parametrize("budget", [1, 2**22])
def test_exact_with_an_unknown_mean_when_points_are_all(pivots, mean, budget):
    X, kernel = points(120), Matern32([0.5, 0.9, 1.3], 1.7)
    noise = noise_of(X, 0.05)
    Z = torch.cat([points(20, seed=1), 5 * points(5, seed=2)])
    chosen = torch.from_numpy(np.random.default_rng(0).permutation(120)[:pivots])
    settings = {"mean": mean, "neighbours": 120, "memory_budget": budget}
    found = SubsetVariance(X, kernel, noise, chosen, **settings).latent(Z)
    np.testing.assert_allclose(found, universal(kernel, X, noise, Z, mean)[0], rtol=1e-4)


def test_a_coefficient_that_no_point_tells_anything_of_stays_vague():
    X = points(60)
    X[:, 1] = 0.5  # so the slope is known along with the constant alone
    Z = X[:3].clone()
    noise, kernel = noise_of(X, 0.05), Matern32(1.0)
    settings = {"neighbours": 60, "mean": "linear"}
    V = SubsetVariance(X, kernel, noise, torch.arange(20), **settings)
    inside = V.latent(Z)
    np.testing.assert_allclose(inside, exact(kernel, X, noise, Z)[0], atol=0.05)
    Z[:, 1] += 1
    assert np.all(V.latent(Z).numpy() > 1e4)


@pytest.mark.parametrize("pivots", [0, 1, 40, 119, 120])
@pytest.mark.parametrize("name", ["matern32-ard", "nested", "linear", "constant"])
def test_exact_when_pivots_and_neighbours_are_all_points(name, pivots):
    kernel = CASES[name]
    X, Z = points(120), points(25, seed=1)
    noise = torch.linspace(0.01, 0.3, 120, dtype=torch.float64)
    chosen = torch.randperm(120, generator=torch.Generator().manual_seed(0))[:pivots]
    found = SubsetVariance(X, kernel, noise, chosen, neighbours=120).latent(Z)
    truth, prior = exact(kernel, X, noise, Z)
    np.testing.assert_allclose(found, truth, rtol=0, atol=1e-9 * prior.max())


@pytest.mark.parametrize("own", [True, False], ids=["own", "cells"])
def test_it_is_the_variance_given_those_points(own):
    """Pivots among the nearest are not counted twice: the next nearest take their place."""
    kernel, X, z = Matern32(0.8, 1.5), points(80), points(1, seed=1)
    noise = torch.full((80,), 0.05, dtype=torch.float64)
    pivots = (X - z).norm(dim=1).argsort()[[0, 2, 30]]
    rest = torch.tensor([i for i in range(80) if i not in pivots.tolist()])
    features = X[rest] / 0.8
    cells = Cells(features, 10 // PER_MEMBER)
    near = cells.near(int(cells.of(z / 0.8)), features, Neighbours(features), 10)
    S = torch.cat([pivots, rest[(X[rest] - z).norm(dim=1).argsort()[:10] if own else near]])
    found = SubsetVariance(X, kernel, noise, pivots.repeat(2), neighbours=Way(own, 10)).latent(z)
    truth = exact(kernel, X[S], noise[S], z)[0]
    np.testing.assert_allclose(found, truth, rtol=1e-10 if own else 1e-6)


def test_more_points_lower_it():
    kernel, X, Z = Matern32(0.8, 1.5), points(400), points(20, seed=1)
    noise = torch.full((400,), 1e-3, dtype=torch.float64)
    by_m = [
        SubsetVariance(X, kernel, noise, torch.arange(20), neighbours=m).latent(Z)
        for m in (0, 20, 100, 380)
    ]
    assert all(bool((more <= less + 1e-12).all()) for less, more in itertools.pairwise(by_m))


def test_one_training_point():
    kernel, X = RBF(0.7, 2.0), torch.tensor([[0.5]], dtype=torch.float64)
    noise = torch.tensor([0.1], dtype=torch.float64)
    for pivots, neighbours in ([0], 5), ([], 5), ([0], None), ([], None):
        V = SubsetVariance(
            X, kernel, noise, torch.tensor(pivots, dtype=torch.long), neighbours=neighbours
        )
        np.testing.assert_allclose(V.latent(X), [2.0 - 4.0 / 2.1], rtol=1e-12)


def test_far_away_is_the_prior_variance():
    X = points(50)
    noise = torch.full((50,), 0.01, dtype=torch.float64)
    V = SubsetVariance(X, Matern32(0.5, 1.7), noise, torch.arange(5), neighbours=10)
    np.testing.assert_allclose(V.latent(X[:3] + 1e3), [1.7] * 3)
    assert V.latent(X[:0]).shape == (0,)


def test_a_kernel_of_the_users_own():
    X, Z = points(60), points(9, seed=1)
    noise = torch.full((60,), 0.02, dtype=torch.float64)
    K = 1 + (X[:, None] - X[None]).square().sum(2)
    k = 1 / (1 + (X[:, None] - Z[None]).square().sum(2))
    truth = 1 - (k * torch.linalg.solve(1 / K + torch.diag(noise), k)).sum(0)
    V = SubsetVariance(X, Own(), noise, torch.arange(10), neighbours=50)
    np.testing.assert_allclose(V.latent(Z), truth, rtol=1e-9)


@pytest.mark.parametrize("budget", [1, 2**16, 2**22])
@pytest.mark.parametrize("own", [True, False], ids=["own", "cells"])
def test_chunks_and_uncached_rows_change_nothing(own, budget):
    kernel, X, Z = Matern12(0.8, 1.5), points(300), points(41, seed=1)
    noise = torch.full((300,), 0.01, dtype=torch.float64)
    settings = {"pivots": torch.arange(50), "neighbours": Way(own, 70)}
    whole = SubsetVariance(X, kernel, noise, **settings)
    small = SubsetVariance(X, kernel, noise, **settings, memory_budget=budget)
    np.testing.assert_allclose(small.latent(Z), whole.latent(Z), rtol=1e-11)
    one_by_one = torch.cat([whole.latent(z[None]) for z in Z])
    np.testing.assert_allclose(one_by_one, whole.latent(Z), rtol=1e-11)


def test_a_factor_that_is_not_kept_is_made_once_for_a_call(monkeypatch):
    made, make = [], KeptFactors._make

    def counted(self, cells, *args):
        made.extend(cells)
        return make(self, cells, *args)

    monkeypatch.setattr(KeptFactors, "_make", counted)
    X, Z = points(300), points(640, seed=1)
    noise = torch.full((300,), 0.01, dtype=torch.float64)
    settings = {"pivots": torch.arange(50), "neighbours": Way(False, 70), "memory_budget": 2**16}
    V = SubsetVariance(X, Matern12(0.8, 1.5), noise, **settings)
    V.latent(Z)
    passes = 10  # of the fewest points: one cell goes on from each to the next
    assert len(made) < len(set(made)) + passes
    assert len(set(made)) > 10


@pytest.mark.parametrize("own", [True, False], ids=["own", "cells"])
def test_threads_change_nothing_and_are_as_they_were(own):
    kernel, X, Z = Matern32(0.8), points(300), points(41, seed=1)
    noise = torch.full((300,), 0.01, dtype=torch.float64)
    V = SubsetVariance(X, kernel, noise, torch.arange(50), neighbours=Way(own, 70))
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(V.latent(Z))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:  # BLAS may round in another way with other threads
        np.testing.assert_allclose(result, results[0], rtol=1e-11)


def test_singular_covariance_gets_jitter():
    """Ten points four times over with no noise to speak of: known there, as good as exactly."""
    X = points(10, 1).repeat(4, 1)
    noise = torch.full((40,), 1e-300, dtype=torch.float64)
    K = torch.from_numpy(reference.matrix(RBF(1.0), X.numpy(), X.numpy()))
    assert int(torch.linalg.cholesky_ex(K).info) > 0
    found = SubsetVariance(X, RBF(1.0), noise, torch.arange(0, 40, 3), neighbours=26).latent(X)
    assert bool((found >= 0).all())
    assert float(found.max()) < 1e-6


def test_neighbours_are_chosen_by_what_they_are_worth():
    X = points(3000, 2)
    smooth = noise_of(X, 0.5)
    few = SubsetVariance(X, Matern32(0.05, 1.0), smooth, torch.arange(0))
    assert (few.own, few.neighbours) == WAYS[0][:2]
    X = points(3000, 8)
    many = SubsetVariance(X, Matern32(6.0, 10.0), noise_of(X, 1e-3), torch.arange(0))
    assert many.neighbours > 100
    chosen = [WAYS.index(many.choose(excess)) for excess in (0.5, 0.2, 0.1, 0.05)]
    assert chosen == sorted(chosen)
    assert len(set(chosen)) > 2


def noise_of(X, variance):
    return torch.full((len(X),), variance, dtype=torch.float64)


def test_chosen_neighbours_meet_the_excess():
    kernel, X, Z = Matern32([2.0, 2.0, 2.0, 2.0], 1.0), points(2000, 4), points(100, 4, seed=1)
    noise = noise_of(X, 0.01)
    V = SubsetVariance(X, kernel, noise, torch.arange(100), excess=0.02)
    truth, _ = exact(kernel, X, noise, Z)
    excess = np.sqrt((V.latent(Z).numpy() + 0.01) / (truth + 0.01)) - 1
    assert 0 <= np.median(excess) < 0.03


@pytest.mark.parametrize("factor", [0.3, 0.5, 0.66, 0.75, 0.9])
def test_variances_are_extrapolated_by_how_fast_they_fall(factor):
    """v + c s^log2(m) has the limit v; a factor s out of bounds counts as the nearest within."""
    limit, c = torch.tensor([[0.1, 0.5, 2.0], [0.4, 0.01, 1.0]], dtype=torch.float64)
    quarter, half, best = (limit + c * factor**doublings for doublings in (7, 8, 9))
    assumed = min(max(factor, SHRINK[0]), SHRINK[1])
    still = (half - best) * assumed / (1 - assumed)
    found = extrapolated(quarter, half, best)
    torch.testing.assert_close(found, best - still)
    if assumed == factor:
        torch.testing.assert_close(found, limit)


def test_variances_that_no_longer_fall_are_their_own_limit():
    same = torch.tensor([0.1, 2.0], dtype=torch.float64)
    torch.testing.assert_close(extrapolated(same, same, same), same)


def test_a_way_that_serves_a_few_points_badly_is_not_chosen():
    class Marginal(SubsetVariance):
        """Cells are perfect for most points and hopeless for one in eight."""

        def _left_out(self, sample, way):
            found = torch.ones(len(sample.rows), dtype=torch.float64)
            found[::8] = 1.0 if way.own else 9.0
            return found if (way.own and way.neighbours > 32) or not way.own else 2 * found

    X = points(3000, 2)
    V = Marginal(X, Matern32(1.0, 1.0), noise_of(X, 0.1), torch.arange(0))
    assert (V.own, V.neighbours) == (True, 64)


def test_errors_name_the_argument():
    X = points(5)
    with pytest.raises(ValueError, match="neighbours: expected a number >= 0, got -1"):
        SubsetVariance(X, RBF(), noise_of(X, 0.1), torch.arange(2), neighbours=-1)
    with pytest.raises(ValueError, match=r"noise: expected .* positive definite"):
        SubsetVariance(X, Linear() + Constant(1.0), noise_of(X, -9.0), torch.arange(5))


MEMORY = """
import resource, torch
from megagp.kernels import Matern32
from megagp.posterior.subset_variance import SubsetVariance
g = torch.Generator().manual_seed(0)
X = torch.randn(4000, 10, dtype=torch.float64, generator=g)
Z = torch.randn(20000, 10, dtype=torch.float64, generator=g)
noise = torch.full((4000,), 0.1, dtype=torch.float64)
V = SubsetVariance(X, Matern32(2.0), noise, torch.arange(200), neighbours=16,
                   memory_budget=64 * 2**20)
V.latent(Z[:64])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
V.latent(Z)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss in KB is Linux's")
def test_memory_stays_within_the_budget():
    """Held at once, the rows of F of all neighbours would take 512 MB, all distances 320 MB."""
    run = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True, env=os.environ
    )
    assert int(run.stdout) < 2 * 64 * 1024
