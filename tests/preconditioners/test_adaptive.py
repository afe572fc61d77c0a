"""A preconditioner that follows the hyperparameters."""

import numpy as np
import pytest
import torch

from megagp import KernelOperator
from megagp.covariance import Covariance
from megagp.kernels import Constant, Matern32
from megagp.preconditioners import AdaptivePreconditioner


def covariance(kernel, n=300, d=2):
    X = np.random.default_rng(0).normal(size=(n, d))
    return Covariance(KernelOperator(X, kernel), torch.full((n,), 0.01, dtype=torch.float64))


@pytest.mark.parametrize("pivoting", ["random", "greedy"])
def test_pivots_are_kept_while_they_serve(pivoting):
    kernel = Matern32([0.5, 1.0])
    K_hat = covariance(kernel)
    adaptive = AdaptivePreconditioner(rank=30, pivoting=pivoting)
    first = adaptive.make(K_hat, 11)
    kernel.lengthscale = [0.6, 1.3]
    kernel.outputscale = 50.0  # a scale alone changes no pivots
    second = adaptive.make(K_hat, 11)
    assert second.pivots.tolist() == first.pivots.tolist()
    assert not torch.equal(second.L, first.L)  # but what is built on them
    kernel.lengthscale = [0.6, 3.5]
    third = adaptive.make(K_hat, 11)
    assert third.pivots.tolist() != first.pivots.tolist()
    # The drift counts from where the pivots were drawn, step by step or not.
    for factor in (1.8, 1.8):
        kernel.lengthscale = factor * kernel.lengthscale
        last = adaptive.make(K_hat, 11)
    assert last.pivots.tolist() != third.pivots.tolist()


def test_other_points_other_pivots():
    adaptive = AdaptivePreconditioner(rank=20)
    small = adaptive.make(covariance(Matern32(), 40), 3)
    large = adaptive.make(covariance(Matern32(), 400), 3)
    assert int(small.pivots.max()) < 40 < int(large.pivots.max())
    assert adaptive.make(covariance(Matern32(), 5), 3).rank == 5


def test_learns_from_solves():
    adaptive = AdaptivePreconditioner()
    K_hat = covariance(Matern32(), 2000)
    first = adaptive.make(K_hat, 11)
    adaptive.learn(first, 2.0)
    easy = adaptive.make(K_hat, 11)
    adaptive.learn(easy, 400.0)
    hard = adaptive.make(K_hat, 11)
    assert hard.rank > easy.rank
    assert hard.rank <= 500
    # Once settled, it stays.
    adaptive.learn(hard, 5.0)
    settled = adaptive.make(K_hat, 11)
    adaptive.learn(settled, 5.0)
    assert adaptive.make(K_hat, 11).pivots.tolist() == settled.pivots.tolist()


def test_budget_and_small_sets():
    adaptive = AdaptivePreconditioner(budget=4 * 2000 * 60)
    assert adaptive.make(covariance(Matern32(), 2000), 11).rank <= 60
    assert AdaptivePreconditioner().make(covariance(Matern32(), 10), 11).rank <= 2
    assert AdaptivePreconditioner().make(covariance(Matern32(), 1), 11).rank == 0


def test_a_kernel_of_low_rank_gives_what_it_has():
    adaptive = AdaptivePreconditioner(rank=30)
    K_hat = covariance(Constant(2.0))
    for _ in range(2):
        P = adaptive.make(K_hat, 11)
        assert P.rank == 1
    X = P.solve(torch.ones(300, 1, dtype=torch.float64))
    np.testing.assert_allclose(X, np.full((300, 1), 1 / 600.01), rtol=1e-4)


def test_same_seed_same_pivots():
    make = [
        AdaptivePreconditioner(rank=40, seed=s).make(covariance(Matern32()), 3) for s in (1, 1, 2)
    ]
    assert make[0].pivots.tolist() == make[1].pivots.tolist()
    assert make[0].pivots.tolist() != make[2].pivots.tolist()


def test_a_smaller_rank_where_products_read_entries():
    X = np.random.default_rng(0).normal(size=(3000, 300))
    noise = torch.full((3000,), 0.1, dtype=torch.float64)
    read, evaluated = (
        AdaptivePreconditioner().make(
            Covariance(KernelOperator(X, Matern32(20.0), cache_budget=budget), noise), 11
        )
        for budget in (10**9, 0)
    )
    assert read.rank < evaluated.rank
