"""Pivots: greedy ones against plain NumPy, random ones against drawing one at a time."""

import numpy as np
import pytest
import torch

import reference
from megagp import KernelOperator
from megagp.kernels import RBF, Constant, Linear, Matern12, Matern32
from megagp.preconditioners import greedy_pivots, random_pivots
from megagp.preconditioners.pivots import BLOCK, EXHAUSTED_FLOAT32, _accept, _factor


def points(n, d=2, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def choose(how, operator, rank, seed=0):
    if how == "greedy":
        return greedy_pivots(operator, rank)
    return random_pivots(operator, rank, np.random.default_rng(seed))


def trace_left(K, pivots):
    """tr(K - K[:, S] K[S, S]⁺ K[S, :]), what the pivots do not explain."""
    S = np.asarray(pivots)
    return np.trace(K - K[:, S] @ np.linalg.pinv(K[np.ix_(S, S)], rcond=1e-12) @ K[S])


def one_at_a_time(K, rank, choice):
    """Pivoted Cholesky of K by the textbook; `choice` picks from the residual diagonal."""
    residual, pivots = K.copy(), []
    for _ in range(rank):
        d = np.maximum(residual.diagonal(), 0)
        i = choice(d)
        pivots.append(i)
        residual -= np.outer(residual[:, i], residual[i]) / residual[i, i]
        residual[i], residual[:, i] = 0, 0
    return pivots


@pytest.mark.parametrize("engine", ["auto", "tiles"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "kernel", [Matern32(0.7, 1.3), RBF([0.5, 2.0]), Linear() + Matern12(), 2.0 * RBF() + 0.3]
)
def test_greedy_is_pivoted_cholesky(kernel, engine, dtype):
    X = points(200)
    # The first pivot of a stationary kernel is a tie, where any will do: this breaks it.
    kernel = kernel + Linear(50.0, 0.1, active_dims=[0]) if kernel.stationary else kernel
    K = reference.matrix(kernel, X, X)
    found = greedy_pivots(KernelOperator(X, kernel, engine=engine, dtype=dtype), 30)
    assert found.tolist() == one_at_a_time(K, 30, np.argmax)


def test_greedy_breaks_a_tie_once_and_goes_on():
    X = points(150)
    operator = KernelOperator(X, RBF(0.6))
    found = greedy_pivots(operator, 20)
    K = reference.matrix(RBF(0.6), X, X)
    first = int(found[0])

    assert found.tolist() == one_at_a_time(K, 20, lambda d: first if d[first] == 1 else d.argmax())


@pytest.mark.parametrize("kernel", [RBF(0.4), Matern12(1.0), Linear(0.5) + Matern32(0.3)], ids=str)
def test_random_ones_are_as_good_as_one_at_a_time(kernel):
    """The trace left over, in the mean over seeds, within the error of that mean."""
    X = points(300)
    X[:200] *= 0.05  # a cluster, where uniform draws would be wasted
    K = reference.matrix(kernel, X, X)
    rank, seeds = 30, 40
    operator = KernelOperator(X, kernel)
    found = np.array([trace_left(K, choose("random", operator, rank, s)) for s in range(seeds)])
    textbook = []
    for s in range(seeds):
        rng = np.random.default_rng(1000 + s)
        pivots = one_at_a_time(K, rank, lambda d, rng=rng: rng.choice(len(d), p=d / d.sum()))
        textbook.append(trace_left(K, pivots))
    error = np.hypot(found.std(), np.std(textbook)) / np.sqrt(seeds)
    assert abs(found.mean() - np.mean(textbook)) < 4 * error
    uniform = [trace_left(K, np.random.default_rng(s).choice(300, rank, False)) for s in range(10)]
    assert found.mean() < 0.9 * np.mean(uniform)


def test_random_draws_follow_the_diagonal():
    """The first pivot of a kernel with a varying diagonal: frequencies against k(x, x)."""
    X = np.array([[1.0], [2.0], [3.0], [4.0]])
    operator = KernelOperator(X, Linear(active_dims=[0]))
    share = np.array([1, 4, 9, 16]) / 30
    draws = 600
    first = [int(choose("random", operator, 1, seed)[0]) for seed in range(draws)]
    frequency = np.bincount(first, minlength=4) / draws
    assert (np.abs(frequency - share) < 4 * np.sqrt(share * (1 - share) / draws)).all()


CASES = {
    "matern": Matern32(),
    "rbf-long": RBF(30.0),
    "linear": Linear(),
    "linear-huge": Linear(1.0, 1e12),
    "linear-tiny": Linear(1.0, 1e-12),
    "constant": Constant(2.0),
    "affine": Linear() + 0.1,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["greedy", "random"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 1), (50, 1), (50, 3), (BLOCK + 1, 2)])
@pytest.mark.parametrize("engine", ["auto", "tiles"])
def test_distinct_indices_that_explain_all_they_can(how, name, n, d, engine):
    X, kernel = points(n, d), CASES[name]
    K = reference.matrix(kernel, X, X)
    for rank in (0, 1, 7, n, n + 50):
        found = choose(how, KernelOperator(X, kernel, engine=engine), rank)
        assert found.dtype == torch.long
        assert len(set(found.tolist())) == len(found) <= min(rank, n)
        assert all(0 <= i < n for i in found.tolist())
        if rank >= n and len(found):
            assert trace_left(K, found) <= 2e-5 * np.trace(K)
    if name in ("linear", "constant", "affine"):
        rank_of_K = np.linalg.matrix_rank(K, tol=1e-9 * np.trace(K))
        most = rank_of_K if how == "greedy" else rank_of_K + 3  # float32 roundoff
        assert rank_of_K <= len(found) <= most


@pytest.mark.parametrize("how", ["greedy", "random"])
@pytest.mark.parametrize("kernel", [Matern32(), RBF(0.5)], ids=str)
@pytest.mark.parametrize("copies", [2, 5])
def test_duplicates_are_not_both_chosen(how, kernel, copies):
    originals = points(40)
    X = np.tile(originals, (copies, 1))
    found = choose(how, KernelOperator(X, kernel), len(X))
    assert len({i % 40 for i in found.tolist()}) == len(found) <= 40
    assert trace_left(reference.matrix(kernel, X, X), found) < 1e-4 * len(X)


@pytest.mark.parametrize("how", ["greedy", "random"])
def test_a_kernel_that_is_zero_has_no_pivots(how):
    found = choose(how, KernelOperator(np.zeros((5, 2)), Linear()), 3)
    assert found.dtype == torch.long
    assert found.tolist() == []


@pytest.mark.parametrize("how", ["greedy", "random"])
def test_same_seed_same_pivots(how):
    operator = KernelOperator(points(400, 3), Matern32())
    first, second = choose(how, operator, 150), choose(how, operator, 150)
    assert first.tolist() == second.tolist()
    if how == "random":
        assert choose(how, operator, 150, seed=1).tolist() != first.tolist()
        assert len(first) == 150  # over more than one block


def test_the_operator_is_left_as_it_was():
    operator = KernelOperator(points(30), Matern32())
    before = operator.diagonal().clone()
    choose("greedy", operator, 5)
    choose("random", operator, 5)
    assert torch.equal(operator.diagonal(), before)


@pytest.mark.parametrize("seed", range(5))
def test_of_near_copies_one_is_accepted(seed):
    """What is left of 120 points at 40 places, with errors as of float32 beside entries of 1."""
    rng = np.random.default_rng(seed)
    U = rng.normal(size=(40, 40))[np.arange(120) % 40]
    S = 1e-5 * U @ U.T + rng.normal(scale=6e-8, size=(120, 120))
    S = 0.5 * (S + S.T)
    d = S.diagonal().copy()
    accepted = _accept(S, d, np.full(120, EXHAUSTED_FLOAT32), rng)
    assert len(set(accepted % 40)) == len(accepted) > 20
    _factor(torch.from_numpy(S[accepted][:, accepted]))
