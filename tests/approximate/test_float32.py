"""Steps in float32 against float64, and when they are not taken.

Rounding is ε ~ 10⁻⁷ of K and A. L⁻¹ makes √magnification times as much of it (`Factor`), which the
bound may show, and once more, in the derivative by K, which the gradient may show.
"""

import numpy as np
import pytest
import torch

import reference
from approximate import dense
from megagp import SGPRegressor
from megagp.approximate import CollapsedLoss, InducingParameters, search, sgpr, triangular
from megagp.approximate import cross as streaming
from megagp.approximate.cross import CrossCovariance, Room
from megagp.approximate.factor import factorise
from megagp.approximate.sgpr import collapse, gradient, moments
from megagp.kernels import RBF, Hyperparameter, Matern32

N, M, D, P, SHARE = 60, 7, 3, 2, 1e-4
KERNELS = reference.kernel_cases(D)
ROUNDING = 1e-6  # a few times ε


def tensor(*shape, seed):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


X, Z, Y = tensor(N, D, seed=0), tensor(M, D, seed=1), tensor(N, P, seed=2)
H = torch.cat([torch.ones(N, 1, dtype=torch.float64), X[:, :1]], 1)


def step(kernel, noise, room, X=X, Z=Z, Y=Y, H=H, share=SHARE):
    """The bound, its gradient as one dict, and how much rounding is magnified."""
    (n, p), TH = Y.shape, torch.cat([Y, H], 1)
    tiles = CrossCovariance(kernel, Z).over(X, room)
    factor = factorise(tiles.cross.square(), share)
    at = collapse(moments(tiles, TH, factor), n, p, noise)
    by_value, by_Z = gradient(at, tiles, TH, n, p)
    return at.value, {**by_value, "Z": by_Z}, factor.magnification


def assert_close(found, expected, rtol):
    for name, g in expected.items():
        atol = rtol * float(g.abs().max()) + 1e-9
        np.testing.assert_allclose(found[name].numpy(), g.numpy(), rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("noise", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("name", KERNELS)
def test_bound_and_gradient(name, noise):
    kernel = KERNELS[name]
    leaves = {n: v.detach().clone().requires_grad_() for n, v in kernel.values().items()}
    noise_leaf = torch.tensor(noise, dtype=torch.float64, requires_grad=True)
    Z_leaf = Z.clone().requires_grad_()
    expected = dense.collapsed(kernel.bind(leaves), noise_leaf, X, Y, H, Z_leaf, SHARE)
    wanted = {**leaves, "noise_variance": noise_leaf, "Z": Z_leaf}
    by = torch.autograd.grad(expected, wanted.values(), allow_unused=True, materialize_grads=True)
    value, found, magnified = step(kernel, noise, Room(torch.float32))
    assert value == pytest.approx(expected.item(), rel=ROUNDING * magnified**0.5)
    assert value != step(kernel, noise, Room())[0]
    assert_close(found, dict(zip(wanted, by, strict=True)), ROUNDING * magnified)


@pytest.mark.parametrize("noise", [1e-2, 1.0])
@pytest.mark.parametrize("kernel", [Matern32(1.0), Matern32(8.0), RBF(0.5), RBF(1.0)], ids=repr)
def test_gradient_by_Z_goes_with_what_is_magnified(kernel, noise):
    """With jitter of 10⁻⁶ and many points; at MAGNIFIED, a tenth at the very most."""
    many, near = tensor(400, D, seed=3), tensor(40, D, seed=4)
    y = (2 * many[:, :1]).sin() + 0.1 * tensor(400, 1, seed=5)
    single, double = (
        step(kernel, noise, Room(dtype), many, near, y, torch.ones_like(y), 1e-6)
        for dtype in (torch.float32, torch.float64)
    )
    assert 40 <= double[2] < search.MAGNIFIED
    off = (single[1]["Z"] - double[1]["Z"]).norm() / double[1]["Z"].norm()
    assert off < 1e-7 * double[2]


@pytest.fixture
def small_tiles(monkeypatch):
    """Several tiles, and strips of tiles and matrices with odd ends."""
    monkeypatch.setattr(streaming, "ROWS", 16)
    monkeypatch.setattr(streaming, "STRIP", 8 * M * 5)
    monkeypatch.setattr(sgpr, "THIN", 3)
    monkeypatch.setattr(triangular, "LEAF", 2)


@pytest.mark.parametrize("name", ["matern32-ard", "sum", "nested"])
@pytest.mark.usefixtures("small_tiles")
def test_the_same_whether_tiles_are_kept_or_made_again(name, monkeypatch):
    kernel, found = KERNELS[name], []
    one = 4 * 16 * M * 8  # bytes of a tile, with room for the terms of a sum
    for kept in (0, one, 1 << 28):
        monkeypatch.setattr(streaming, "KEPT", kept)
        found.append(step(kernel, 0.1, Room(torch.float32)))
    for value, by, _ in found[:-1]:
        assert value == pytest.approx(found[-1][0], rel=1e-6)
        assert_close(by, found[-1][1], rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("small_tiles")
def test_a_room_that_was_used_before_changes_nothing(dtype):
    room = Room(dtype)
    step(KERNELS["rbf"], 0.3, room)
    again = step(KERNELS["matern32"], 0.1, room)
    new = step(KERNELS["matern32"], 0.1, Room(dtype))
    assert again[0] == pytest.approx(new[0], rel=1e-6)
    assert_close(again[1], new[1], rtol=1e-5)


def test_room_hands_out_what_it_was_given():
    room = Room(torch.float32)
    A = room.take(3, 2)
    assert A.dtype == torch.float32
    room.give(A)
    assert room.take(2, 3) is not A
    assert room.take(3, 2) is A
    assert room.take(3, 2) is not A


def test_what_is_kept_beside_tiles_counts(monkeypatch):
    """Of three tiles' bytes, K, slope and A each take one."""
    monkeypatch.setattr(streaming, "ROWS", 16)
    monkeypatch.setattr(streaming, "KEPT", 3 * 4 * 16 * M)
    tiles = CrossCovariance(KERNELS["matern32"], Z).over(X, Room(torch.float32))
    for rows, K in tiles.blocks(beside=1):
        tiles.keep(rows, K.T.clone())
    assert [tiles.take(rows) is not None for rows in tiles.cross.rows(N)] == [True] + 3 * [False]


def loss(kernel, products, Z=Z):
    parameters = InducingParameters(kernel, Hyperparameter("noise_variance", 0.1), 1e-4, Z, True)
    return CollapsedLoss(X, Y, H, parameters, 1e-6, products=products)


def test_float64_where_inducing_points_nearly_coincide():
    kernel = RBF(30.0)
    double, single = (loss(kernel, dtype) for dtype in (torch.float64, torch.float32))
    theta = double.best[1]
    (value, slope), (found, found_slope) = double(theta), single(theta)
    assert found == value
    np.testing.assert_array_equal(found_slope, slope)
    assert dict(single.evaluations) == {torch.float64: 1}
    apart = loss(Matern32(), torch.float32)
    apart(theta)
    assert dict(apart.evaluations) == {torch.float32: 1}


@pytest.mark.parametrize("broken", [np.nan, -1e9])
def test_float64_where_float32_fails(broken, monkeypatch):
    """NaN in the bound, or I + A Aᵀ / σ² that is not positive definite."""
    first = sgpr._whitened

    def breaks(*arguments):
        P, F = first(*arguments)
        return P.fill_diagonal_(broken), F

    monkeypatch.setattr(sgpr, "_whitened", breaks)
    double, single = (loss(Matern32(), dtype) for dtype in (torch.float64, torch.float32))
    theta = double.best[1]
    value, slope = double(theta)
    found, found_slope = single(theta)
    assert found == value == single.best[0]
    np.testing.assert_allclose(found_slope, slope, rtol=1e-12)
    assert dict(single.evaluations) == {torch.float32: 1, torch.float64: 1}


def test_float64_where_a_gradient_is_not_finite(monkeypatch):
    def breaks(at, tiles, *others):
        by_value, by_Z = gradient(at, tiles, *others)
        return by_value, by_Z / 0 if tiles.room.dtype == torch.float32 else by_Z

    monkeypatch.setattr(search, "gradient", breaks)
    single = loss(Matern32(), torch.float32)
    assert np.isfinite(single(single.best[1])[1]).all()
    assert dict(single.evaluations) == {torch.float32: 1, torch.float64: 1}


def test_what_adam_leaves_is_float64():
    rng = np.random.default_rng(0)
    points = rng.standard_normal((300, 2))
    y = np.sin(2 * points[:, 0]) + 0.1 * rng.standard_normal(300)
    settings = {"inducing_points": 20, "steps": 8, "whiten": False, "random_state": 0}
    model = SGPRegressor(training="adam", **settings).fit(points, y)
    assert model.diagnostics_["evaluations"] == {"float32": 9, "float64": 1}
    parameters = InducingParameters(
        model.kernel_,
        Hyperparameter("noise_variance", model.noise_variance_),
        1e-4,
        model.posterior_.Z,
        True,
    )
    Y = torch.from_numpy(y)[:, None]
    at = CollapsedLoss(
        torch.from_numpy(points), Y, torch.ones_like(Y), parameters, 1e-6
    ).evaluate()[0]
    assert model.log_marginal_likelihood_ == pytest.approx(at.value, rel=1e-12)
    np.testing.assert_allclose(model.posterior_.weights, at.weights, rtol=1e-9)
    with_lbfgs = SGPRegressor(**settings).fit(points, y)
    assert with_lbfgs.diagnostics_["evaluations"]["float32"] == 0
