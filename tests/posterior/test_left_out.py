"""Errors of points left out, against refits without them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import reference
from megagp.kernels import Matern32
from megagp.likelihood import Trend
from megagp.mean import basis
from megagp.posterior import LeftOut, Posterior, left_out, rows_left_out
from megagp.training import places

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
    for i, error, variance, noise in zip(*found[:4], strict=True):
        assert float(noise) == float(made.noise[i])
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


def exact_variances(made, rows, K):
    return torch.from_numpy(1 / np.diag(np.linalg.inv(K)))[rows]


def fewer(monkeypatch, neighbours, size, cells):
    for name, value in (("NEIGHBOURS", neighbours), ("SIZE", size), ("CELLS", cells)):
        monkeypatch.setattr(left_out, name, value)


def smooth(n, pivots):
    """Little noise, so that far points matter: more of them, less variance."""
    made, Y, _ = posterior(n, pivots)
    made = replace(made, noise=torch.full((n,), 1e-4, dtype=torch.float64))
    K = reference.matrix(KERNEL, made.X.numpy(), made.X.numpy()) + 1e-4 * np.eye(n)
    return replace(made, weights=torch.from_numpy(np.linalg.solve(K, Y))), torch.from_numpy(Y), K


@pytest.mark.parametrize("neighbours", [100, 550, 590])
def test_fewer_neighbours_and_cells(monkeypatch, neighbours):
    """Variances from some of the points are about those from all, however many these are."""
    fewer(monkeypatch, neighbours, 30, 5)
    made, Y, K = smooth(600, 10)
    out = made.leave_one_out(Y, 100, seed=0)
    assert 70 < len(out.rows) < 130
    assert len(out.rows.unique()) == len(out.rows)
    ratio = out.variances / exact_variances(made, out.rows, K)
    off = 0.1 if neighbours == 100 else 0.01
    assert float(ratio.median()) == pytest.approx(1.0, abs=off)
    assert float((ratio.log().abs() > 10 * off).double().mean()) < 0.1


@pytest.mark.parametrize("pivots", [1, 2])
def test_hardly_any_pivots(pivots):
    made, Y, K = posterior(90, pivots)
    out = made.leave_one_out(torch.from_numpy(Y), 90, seed=0)
    assert len(out.rows) > 80
    np.testing.assert_allclose(out.variances, exact_variances(made, out.rows, K), rtol=1e-6)


def test_few_places_with_many_points(monkeypatch):
    """Cells that have no points, and cells that have more than they should."""
    fewer(monkeypatch, 60, 10, 3)
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.normal(size=(4, 2))[rng.integers(4, size=400)])
    K = reference.matrix(KERNEL, X.numpy(), X.numpy()) + NOISE * np.eye(400)
    noise = torch.full((400,), NOISE, dtype=torch.float64)
    rows, variances = left_out.variances_left_out(X, KERNEL, noise, torch.tensor([5]), 400, 0)
    assert 20 <= len(rows) <= 60
    exact = torch.from_numpy(1 / np.diag(np.linalg.inv(K)))[rows]
    np.testing.assert_allclose(variances, exact, rtol=0.02)


@pytest.mark.parametrize("mean", ["constant", "linear"])
def test_the_mean_follows_from_the_others_too(mean):
    """Against universal kriging without the point, written out."""
    made, Y, K = posterior(90, 90)
    H = basis(made.X, mean).numpy()
    A = np.linalg.inv(H.T @ np.linalg.solve(K, H))
    beta = A @ H.T @ np.linalg.solve(K, Y)
    made = replace(
        made,
        mean=mean,
        trend=Trend(torch.from_numpy(beta), torch.from_numpy(A)),
        weights=torch.from_numpy(np.linalg.solve(K, Y - H @ beta)),
        trend_weights=torch.from_numpy(np.linalg.solve(K, H)),
    )
    out = made.leave_one_out(torch.from_numpy(Y), 90, seed=0)
    for i in (0, 7, 50, 89):
        rest = np.arange(90) != i
        inner = K[np.ix_(rest, rest)]
        W, h = H[rest], H[i]
        A_i = np.linalg.inv(W.T @ np.linalg.solve(inner, W))
        b = A_i @ W.T @ np.linalg.solve(inner, Y[rest])
        w = np.linalg.solve(inner, K[rest, i])
        np.testing.assert_allclose(out.errors[i], Y[i] - h @ b - w @ (Y[rest] - W @ b), rtol=1e-6)
        u = h - W.T @ w
        wanted = K[i, i] - w @ K[rest, i] + u @ A_i @ u
        assert float(out.variances[i]) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("left", [0.0, 0.1], ids=["exact", "with a residual"])
def test_rows_of_one_place_are_predicted_from_all_other_rows(left):
    """Weights that leave a residual are exact ones of other observations."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))[np.r_[np.arange(30), np.arange(10), np.arange(5)]]
    Y, scale = rng.normal(size=(45, 2)), rng.uniform(0.5, 2, 45)
    at = places(*(torch.from_numpy(A) for A in (X, Y, scale)))
    K = reference.matrix(KERNEL, X[:30], X[:30]) + np.diag(NOISE * at.noise_scale.numpy())
    inverse = np.linalg.inv(K)
    variances = torch.from_numpy(1 / inverse.diagonal())
    R = torch.from_numpy(left * rng.normal(size=(30, 2)))
    errors = torch.from_numpy(inverse @ (at.Y - R).numpy()) * variances[:, None] + R
    some = torch.arange(0, 30, 2)
    noise = NOISE * at.noise_scale
    out = LeftOut(some, errors[some], variances[some], noise[some], R[some])
    found = rows_left_out(out, at, *(torch.from_numpy(A) for A in (Y, scale)), 100, seed=0)
    whole = reference.matrix(KERNEL, X, X) + np.diag(NOISE * scale)
    precision = np.linalg.inv(whole)
    of_rows = R[at.place].numpy()
    expected = (precision @ (Y - of_rows)) / precision.diagonal()[:, None] + of_rows
    assert sorted(found.rows.tolist()) == sorted(g for g in at.place.tolist() if g % 2 == 0)
    for place, error, variance, noise in zip(*found[:4], strict=True):
        rows = (at.place == place).nonzero()[:, 0].numpy()
        # Which of the rows it is, its error tells.
        row = rows[np.abs(expected[rows] - error.numpy()).sum(1).argmin()]
        np.testing.assert_allclose(error, expected[row], rtol=1e-8)
        assert float(variance) == pytest.approx(1 / precision[row, row], rel=1e-8)
        assert float(noise) == pytest.approx(NOISE * scale[row])
