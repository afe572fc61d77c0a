"""The rank: which way it moves with what it is told."""

import itertools

import pytest

from megagp.preconditioners import choose_rank
from megagp.preconditioners.rank import CHOICES, cost

SIZES = [1_000, 10_000, 100_000, 1_000_000]


def rising(values):
    return all(a <= b for a, b in itertools.pairwise(values))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("d", [1, 10, 100])
def test_more_to_do_more_rank(n, d):
    plenty = 1 << 50
    by_columns = [choose_rank(n, d, t, budget=plenty) for t in (1, 2, 5, 11, 30, 100)]
    assert rising(by_columns)
    by_iterations = [
        choose_rank(n, d, 11, seen=(500, i), budget=plenty) for i in (1, 5, 20, 100, 1000)
    ]
    assert rising(by_iterations)
    by_solves = [choose_rank(n, d, 11, solves=s, budget=plenty) for s in (1, 2, 10, 100)]
    assert rising(by_solves)


def test_each_of_them_counts():
    """Somewhere each argument makes a difference."""
    plain = {"n": 10_000, "d": 8, "columns": 11, "seen": (500, 20.0), "budget": 1 << 50}
    least = choose_rank(**plain)
    assert choose_rank(**plain | {"columns": 100}) > least
    assert choose_rank(**plain | {"seen": (500, 200.0)}) > least
    assert choose_rank(**plain | {"solves": 10}) > least
    assert choose_rank(**plain | {"float64": True}) > least
    assert choose_rank(**plain | {"n": 100_000}) > least
    # A solve that was seen counts for more than noise.
    assert choose_rank(**plain | {"noise": 1e-4}) == least
    unseen = {**plain, "seen": None}
    for neighbours in (0, 12):
        by_noise = [
            choose_rank(**unseen, neighbours=neighbours, noise=noise)
            for noise in (10.0, 0.1, 1e-3, 1e-5)
        ]
        assert rising(by_noise)
        assert by_noise[0] < by_noise[-1]


@pytest.mark.parametrize("n", [*SIZES, 10_000_000])
@pytest.mark.parametrize("budget", [0, 1 << 20, 1 << 24, 1 << 29])
def test_the_budget_is_kept(n, budget):
    k = choose_rank(n, 10, 50, seen=(100, 500.0), budget=budget)
    assert 4 * n * k <= budget


@pytest.mark.parametrize("n", [1, 2, 10, 100, 199, 200, 500, 1000])
def test_small_sets(n):
    k = choose_rank(n, 3, 11, seen=(50, 1000.0))
    assert 0 <= k <= n // 4
    assert k in (0, *CHOICES)


def test_the_choice_is_the_cheapest():
    n, d, t, seen = 20_000, 8, 11, (500, 51.0)
    k = choose_rank(n, d, t, seen=seen, budget=1 << 50)
    assert cost(k, n, d, t, seen) == min(cost(c, n, d, t, seen) for c in CHOICES)


def test_nothing_to_gain_least_rank():
    """One iteration suffices at rank 20: a large factorisation would only cost."""
    assert choose_rank(10_000, 5, 1, seen=(20, 1.0)) == CHOICES[0]
