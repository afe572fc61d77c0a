"""Adam and L-BFGS on objectives of ours: where they end, and what they survive."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import minimize

from megagp.kernels import Hyperparameter, Matern32
from megagp.training.optimisers import (
    CAUTIOUS,
    FURTHEST,
    SHORTER,
    WILD,
    _direction,
    _least,
    adam,
    lbfgs,
)
from megagp.training.parameters import LARGEST_RATIO, Parameters


class Bowl:
    """Loss scale * |θ - centre|² / 2, with whatever `spoil` makes of it."""

    def __init__(self, centre, spoil=None, scale=1.0):
        noise = Hyperparameter("noise_variance", 0.1)
        self.parameters = Parameters(Matern32([1.0, 1.0]), noise, 1e-4)
        self.centre = np.asarray(centre, dtype=float)
        self.spoil, self.scale = spoil, scale
        self.calls = []

    noise_level = 1e-7
    failure = None
    spread = np.ones(2)

    def renewed(self):
        return False

    def __call__(self, theta, draw=0, hold=False):
        self.parameters.set(theta)
        self.calls.append((theta.copy(), draw))
        away = theta - self.centre
        found = 0.5 * self.scale * float(away @ away), self.scale * away
        return found if self.spoil is None else self.spoil(len(self.calls), theta, *found)

    def state(self):
        return self.calls[-1][0]

    def restore(self, theta):
        self.parameters.set(theta)


CENTRE = [0.7, -0.5, 1.0, -1.0]


def muted(first, heard=-1.0):
    """A bowl that is flat in a lengthscale of e^6, of which 1/ℓ² speaks from some call on.

    heard: what hearing it adds to the loss.
    """

    def spoil(call, theta, loss, gradient):
        away = theta[1] - CENTRE[1]
        loss, slope = loss - 0.5 * away**2, gradient.copy()
        slope[1] = 1e-3 if theta[1] > 4 and call >= first else 0.0
        return loss + (heard if theta[1] <= 4 else 0.0), slope

    objective = Bowl(CENTRE, spoil)
    objective.parameters.set(np.array([0.0, 6.0, 0.0, -1.0]))
    return objective


@pytest.mark.parametrize("settings", [{"steps": 200}, {"steps": 1, "further": 60}])
@pytest.mark.parametrize("first", [1, 2])
def test_inputs_are_heard_again_however_a_search_would_end(settings, first):
    objective = muted(first)
    assert objective.parameters.get()[1] > 4
    lbfgs(objective, report=quiet, **settings)
    found = objective.parameters.get()
    assert found[1] <= 4
    np.testing.assert_allclose(found[[0, 2, 3]], np.array(CENTRE)[[0, 2, 3]], atol=0.1)


def test_inputs_are_let_go_again_where_hearing_them_makes_it_worse():
    objective = muted(1, heard=1.0)
    lbfgs(objective, 50, quiet)
    found = objective.parameters.get()
    assert found[1] == pytest.approx(6.0, abs=0.1)
    np.testing.assert_allclose(found[[0, 2, 3]], np.array(CENTRE)[[0, 2, 3]], atol=0.02)


def quiet(step, loss, theta):
    """A report that nobody reads."""


def run(name, objective, steps=200):
    reports = []
    if name == "adam":
        adam(objective, steps, 0.1, lambda *r: reports.append(r))
    else:
        lbfgs(objective, steps, lambda *r: reports.append(r))
    return reports


@pytest.mark.parametrize("name", ["adam", "lbfgs"])
def test_reaches_the_minimum(name):
    objective = Bowl(CENTRE)
    reports = run(name, objective)
    np.testing.assert_allclose(objective.parameters.get(), CENTRE, atol=2e-2)
    steps, losses, thetas = zip(*reports, strict=True)
    # Each report has the best θ so far, with its loss.
    for loss, theta in zip(losses, thetas, strict=True):
        assert loss == pytest.approx(objective(theta)[0], abs=1e-12)
    assert list(steps) == list(range(1, len(steps) + 1))
    assert losses[-1] < 1e-3


@pytest.mark.parametrize("worse", [False, True])
def test_pivots_are_renewed_after_steps_that_gained(worse):
    asked = []

    def spoil(call, theta, loss, gradient):
        # The first step is a little worse, if asked for, but within the noise.
        return (first[0] + 0.5, gradient) if worse and call == 2 else (loss, gradient)

    class Renewed(Bowl):
        noise_level = 1.0

        def renewed(self):
            asked.append(len(self.calls))
            return False

    objective = Renewed(CENTRE, spoil, scale=30.0)
    first = Bowl(CENTRE, scale=30.0)(objective.parameters.get())
    lbfgs(objective, 3, quiet)
    assert (2 in asked) is not worse
    assert asked


@pytest.mark.parametrize("name", ["adam", "lbfgs"])
def test_stays_within_bounds(name):
    objective = Bowl([0.0, 0.0, 0.0, -30.0])
    run(name, objective, 300)
    assert objective.parameters.get()[3] == pytest.approx(np.log(1e-4))
    assert all(theta[3] >= np.log(1e-4) - 1e-12 for theta, _ in objective.calls)


def test_lbfgs_follows_the_largest_ratio_of_outputscale_to_noise():
    # The least distance to the centre on the line log outputscale = log noise + c.
    c, outputscale, noise = np.log(LARGEST_RATIO), 8.0, -7.0
    objective = Bowl([0.7, -0.5, outputscale, noise])
    run("lbfgs", objective)
    on_the_line = (outputscale - c + noise) / 2
    expected = [0.7, -0.5, on_the_line + c, on_the_line]
    np.testing.assert_allclose(objective.parameters.get(), expected, atol=1e-3)


def test_lbfgs_does_not_drift_uphill_within_the_noise():
    objective = Bowl(CENTRE, lambda call, theta, loss, slope: (0.9 * call, slope))
    objective.noise_level = 1.0
    objective.scale = 1e3
    run("lbfgs", objective)
    # The second step is above the first loss by more than the noise, however short.
    assert len(objective.calls) <= 6
    np.testing.assert_allclose(objective.parameters.get(), objective.calls[0][0])


def test_lbfgs_takes_further_steps_while_they_gain():
    away = [3.0, -3.0, 3.0, -3.0]
    short, long, flat = Bowl(away), Bowl(away), Bowl(away, scale=1e-4)
    flat.noise_level = 1e-9
    lbfgs(short, 1, quiet)
    lbfgs(long, 1, quiet, further=50)
    lbfgs(flat, 1, quiet, further=50)
    assert len(short.calls) == len(flat.calls) == 2
    assert 3 < len(long.calls) < 20
    np.testing.assert_allclose(long.parameters.get(), away, atol=0.1)


def test_lbfgs_trusts_the_memory_of_another_search_step_by_step():
    objective = Bowl([5.0, 0.0, 0.0, -1.0])
    memory = [(np.eye(4)[i], np.eye(4)[i]) for i in range(4)]  # of the Bowl's own curvature
    lbfgs(objective, 3, quiet, memory=memory)
    moved = [abs(b - a).max() for (a, _), (b, _) in pairwise(objective.calls)]
    np.testing.assert_allclose(moved, [CAUTIOUS, min(1.0, 2 * CAUTIOUS), 1.0])
    # As far as that search went, if it went further; but not any distance.
    for trend, first in ((0.1, CAUTIOUS), (1.4, 1.4), (9.0, FURTHEST)):
        objective = Bowl([5.0, 0.0, 0.0, -1.0])
        lbfgs(objective, 1, quiet, memory=list(memory[:4]), trend=trend)
        (start, _), (end, _) = objective.calls
        assert abs(end - start).max() == pytest.approx(first)


def test_stale_memory_is_dropped_after_inputs_are_woken():
    """Pairs of another search, far too stiff: what follows a step that wakes starts anew."""
    objective = Bowl(CENTRE)
    objective.noise_level = 1e-4
    start = objective.parameters.get()
    start[1] = np.log(5000.0)
    objective.parameters.set(start)
    stiff = [(np.eye(4)[i], 1e9 * np.eye(4)[i]) for i in range(4)]
    lbfgs(objective, 60, quiet, memory=stiff)
    np.testing.assert_allclose(objective.parameters.get(), CENTRE, atol=0.05)


class Valley(Bowl):
    """½ (θ - centre)ᵀ A (θ - centre) with eigenvalues over three decades, not along the axes."""

    def __call__(self, theta, draw=0, hold=False):
        super().__call__(theta, draw)
        Q, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))
        A = (Q * np.geomspace(0.01, 10, 4)) @ Q.T
        away = theta - self.centre
        return 0.5 * float(away @ A @ away), A @ away


@pytest.mark.parametrize("centre", [CENTRE, [0.7, -0.5, 1.0, -12.0], [9.5, 0.0, 0.0, -12.0]])
def test_lbfgs_against_scipy(centre):
    """In a valley, with the minimum inside the bounds or beyond one or two of them."""
    objective = Valley(centre)
    bounds = list(zip(objective.parameters.lower, objective.parameters.upper, strict=True))
    start = objective.parameters.get()
    peer = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds)
    objective = Valley(centre)
    lbfgs(objective, 100, quiet)
    found = objective(objective.parameters.get())[0]
    assert found <= peer.fun + 1e-3
    assert len(objective.calls) < 150


@pytest.mark.parametrize("centre", [CENTRE, [0.7, -0.5, 7.0, -8.5], [9.5, 0.0, 8.0, -12.0]])
def test_a_step_is_the_best_of_its_model_within_the_bounds(centre):
    """With the curvature known, one step leads to the least loss within all bounds."""
    objective = Valley(centre)
    bounds, theta = objective.parameters, np.array([0.0, 0.0, 1.0, -6.0])
    loss, gradient = objective(theta)
    A = np.column_stack([objective(theta + e)[1] - gradient for e in np.eye(4)])
    _, Q = np.linalg.eigh(A)
    memory = [(q, A @ q) for q in Q.T]  # conjugate directions: all there is to know
    step = _direction(bounds, theta, gradient, memory, reach=np.inf)
    np.testing.assert_allclose(bounds.clip(theta + step), theta + step, atol=1e-9)
    ratio = {"type": "ineq", "fun": lambda t: np.log(LARGEST_RATIO) + t[3] - t[2]}
    box = list(zip(bounds.lower, bounds.upper, strict=True))
    peer = minimize(
        objective, theta, jac=True, method="SLSQP", bounds=box, constraints=[ratio], tol=1e-12
    )
    assert objective(theta + step)[0] == pytest.approx(peer.fun, rel=1e-6, abs=1e-9)
    assert loss > objective(theta + step)[0]


BAD = {
    "inf": (np.inf, np.nan),
    "nan": (np.nan, np.nan),
    "gradient": (0.1, np.nan),
    "infinite-gradient": (0.1, np.inf),
}


@pytest.mark.parametrize("name", ["adam", "lbfgs"])
@pytest.mark.parametrize("kind", BAD)
def test_survives_failed_evaluations(name, kind):
    """At some calls the likelihood does not exist: the step is taken back and training goes on."""
    value, slope = BAD[kind]

    def spoil(call, theta, loss, gradient):
        return (value, np.full(4, slope)) if call in (3, 4, 9) else (loss, gradient)

    objective = Bowl(CENTRE, spoil)
    reports = run(name, objective)
    found = objective.parameters.get()
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, CENTRE, atol=0.1)
    assert all(np.isfinite(loss) for _, loss, _ in reports)


@pytest.mark.parametrize("name", ["adam", "lbfgs"])
def test_a_wall(name):
    """The minimum lies behind a region without likelihood: the last good θ is what remains."""

    def spoil(call, theta, loss, gradient):
        return (np.inf, np.full(4, np.nan)) if theta[0] > 0.3 else (loss, gradient)

    objective = Bowl(CENTRE, spoil)
    run(name, objective, 60)
    found = objective.parameters.get()
    assert 0 <= found[0] <= 0.3
    assert any(np.array_equal(theta, found) for theta, _ in objective.calls)  # it was evaluated


def test_adam_takes_a_wild_step_back():
    def spoil(call, theta, loss, gradient):
        return (loss + 2 * WILD, gradient) if call == 5 else (loss, gradient)

    objective = Bowl(np.zeros(4) + 5.0, spoil, scale=1e-3)
    run("adam", objective, 10)
    thetas = [theta for theta, _ in objective.calls]
    # Call 5 is undone: call 6 starts again from call 4, with half the step.
    before, wild, after = thetas[3], thetas[4], thetas[5]
    assert np.abs(after - before).max() < 0.75 * np.abs(wild - before).max()
    assert (after > before)[:3].all()


def test_adam_draws_new_probes_at_each_step():
    objective = Bowl(CENTRE)
    adam(objective, 5, 0.1, quiet, first_draw=7)
    # The first may be that of the phase before.
    assert [draw for _, draw in objective.calls] == [None, 8, 9, 10, 11, 12]


def test_lbfgs_keeps_its_probes():
    objective = Bowl(CENTRE)
    lbfgs(objective, 5, quiet, draw=3)
    assert {draw for _, draw in objective.calls} == {3}


@pytest.mark.parametrize("name", ["adam", "lbfgs"])
def test_ends_at_the_best_it_saw(name):
    """With noise in the loss the last point need not be the best."""
    rng = np.random.default_rng(0)
    seen = []

    def spoil(call, theta, loss, gradient):
        noisy = loss + 0.3 * rng.normal(), gradient + 0.3 * rng.normal(size=4)
        seen.append((noisy[0], theta.copy()))
        return noisy

    objective = Bowl(CENTRE, spoil)
    run(name, objective, 10)
    best = min(seen, key=lambda pair: pair[0])[1]
    np.testing.assert_array_equal(objective.parameters.get(), best)


@pytest.mark.parametrize("name", ["adam", "lbfgs"])
@pytest.mark.parametrize("kind", BAD)
def test_no_likelihood_at_the_start(name, kind):
    value, slope = BAD[kind]
    objective = Bowl(CENTRE, lambda *_: (value, np.full(4, slope)))
    with pytest.raises(ValueError, match="expected a finite likelihood at the starting"):
        run(name, objective, 5)


@pytest.mark.parametrize("name", ["adam", "lbfgs"])
def test_same_bits(name):
    first, second = Bowl(CENTRE), Bowl(CENTRE)
    run(name, first, 20)
    run(name, second, 20)
    np.testing.assert_array_equal(first.parameters.get(), second.parameters.get())


@pytest.mark.parametrize("cubic", [(-1.0, 2.5, 0.0), (-1.0, 1.2, 2.0), (-0.3, -1.0, 3.0)])
def test_least_of_a_cubic(cubic):
    slope, b, a = cubic

    def f(u):
        return 0.7 + u * (slope + u * (b + u * a))

    grid = np.linspace(*SHORTER, 10_001)
    share, lower = _least(0.7, slope, f(1.0), slope + 2 * b + 3 * a)
    assert share == pytest.approx(grid[np.argmin(f(grid))], abs=1e-4)
    assert lower == pytest.approx(0.7 - f(share))


def test_least_of_a_falling_line_is_as_far_as_it_goes():
    assert _least(0.0, -1.0, -1.0, -1.0) == pytest.approx((SHORTER[1], SHORTER[1]))


def test_lbfgs_gives_up_a_step_that_gains_nothing_when_shortened():
    """A wall right behind θ: the first trial shows that there is nothing to gain before it."""
    here = Bowl(CENTRE).parameters.get()
    objective = Bowl(here + 1e-4, scale=1e4)
    objective.noise_level = 1e-3
    lbfgs(objective, 10, quiet)
    assert len(objective.calls) == 2
    np.testing.assert_array_equal(objective.parameters.get(), here)
