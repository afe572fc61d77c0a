"""Errors of points left out, against refits without them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import reference
from megagp.kernels import Matern32
from megagp.likelihood import Trend
from megagp.posterior import Posterior, left_out

KERNEL, NOISE = Matern32([0.7, 1.3], 1.5), 0.05


def posterior(n, pivots, p=2):
    rng = np.random.default_rng(n)
    X, Y = rng.normal(size=(n, 2)), rng.normal(size=(n, p))
    noise = NOISE * rng.uniform(0.5, 2, n)
    K = reference.matrix(KERNEL, X, X) + np.diag(noise)
    nothing = torch.zeros(0, 0, dtype=torch.float64)
    made = Posterior(
        X=torch.from_numpy(X),
        kernel=KERNEL,
        noise=torch.from_numpy(noise),
        mean="zero",
        trend=Trend(torch.zeros(0, p, dtype=torch.float64), nothing),
        weights=torch.from_numpy(np.linalg.solve(K, Y)),
        trend_weights=torch.zeros(n, 0, dtype=torch.float64),
        pivots=torch.arange(pivots),
        rtol=0.01,
        max_iter=100,
        neighbours=64,
    )
    return made, Y, K


@pytest.mark.parametrize("pivots", [90, 30], ids=["by Cholesky", "joint"])
def test_each_point_is_predicted_from_the_others(pivots):
    made, Y, K = posterior(90, pivots)  # all are neighbours
    found = made.leave_one_out(torch.from_numpy(Y), 60, seed=0)
    assert len(found.rows.unique()) == len(found.rows)
    assert len(found.rows) == 90 if pivots == 90 else 45 < len(found.rows) < 75
    assert bool((found.rows < pivots).any())  # pivots are left out as well
    for i, error, variance in zip(*found, strict=True):
        rest = np.arange(90) != int(i)
        weights = np.linalg.solve(K[np.ix_(rest, rest)], K[rest, i])
        np.testing.assert_allclose(error, Y[i] - weights @ Y[rest], rtol=1e-5, atol=1e-8)
        assert float(variance) == pytest.approx(K[i, i] - weights @ K[rest, i], rel=1e-4)


def test_what_a_solve_has_left_is_part_of_the_error():
    """Weights of y - r predict y - r from the others; y is what new observations are like."""
    made, Y, K = posterior(90, 90)
    r = 0.01 * np.random.default_rng(0).normal(size=Y.shape)
    off = replace(made, weights=torch.from_numpy(np.linalg.solve(K, Y - r)))
    found = off.leave_one_out(torch.from_numpy(Y), 90, seed=0)
    for i in (0, 40, 89):
        rest = np.arange(90) != i
        weights = np.linalg.solve(K[np.ix_(rest, rest)], K[rest, i])
        np.testing.assert_allclose(found.errors[i], Y[i] - weights @ (Y - r)[rest], rtol=1e-7)


def test_points_at_one_place_do_not_know_themselves():
    made, *_ = posterior(90, 10)
    twice = torch.cat([made.X, made.X[:1].repeat(300, 1)])
    changed = {"X": twice, "noise": torch.full((390,), NOISE, dtype=torch.float64)}
    changed |= {"weights": torch.ones(390, 2, dtype=torch.float64)}
    changed |= {"trend_weights": torch.zeros(390, 0, dtype=torch.float64)}
    found = replace(made, **changed).leave_one_out(torch.zeros(390, 2), 400, seed=0)
    assert len(found.rows.unique()) == len(found.rows)
    assert int((found.rows >= 90).sum()) > 100
    assert bool((found.variances > NOISE).all())


def test_fewer_neighbours_and_cells(monkeypatch):
    """Variances from some of the points are about those from all."""
    for name, value in (("NEIGHBOURS", 150), ("SIZE", 30), ("CELLS", 5)):
        monkeypatch.setattr(left_out, name, value)
    made, Y, K = posterior(600, 60)
    rows, errors, variances = made.leave_one_out(torch.from_numpy(Y), 100, seed=0)
    assert 70 < len(rows) < 130
    assert len(rows.unique()) == len(rows)
    exact = torch.from_numpy(1 / np.diag(np.linalg.inv(K)))[rows]
    ratio = variances / exact
    assert float(ratio.min()) > 0.9
    assert 0.99 < float(ratio.median()) < 1.01
    exact = made.weights[rows] * exact[:, None]
    assert float((errors - exact).norm() / exact.norm()) < 0.1
