"""Every engine against the dense reference: one table of kernel x engine x dtype x shape.

A new engine joins with one line in ENGINES.
"""

from functools import cache

import numpy as np
import pytest
import torch

import reference
from megagp import KernelOperator
from megagp.engines import NativeEngine, TilesEngine, instruction_sets
from megagp.kernels import RBF, Constant, Linear, Matern12, Matern32, Matern52, RationalQuadratic

ENGINES = {
    "tiles": TilesEngine(),
    **{f"native-{name}": NativeEngine(2, name) for name in instruction_sets()},
}

DTYPES = {"float32": 1e-5, "float64": 1e-12}
GRADIENT_DTYPES = {"float32": 1e-4, "float64": 1e-7}


def kernel_cases(d):
    ard = np.linspace(0.6, 1.4, d)
    return reference.kernel_cases(d) | {
        "rational-quadratic-ard": RationalQuadratic(ard, 0.8, 3.0),
        "periodic-active": reference.Periodic(0.9, 1.3, 2.5, active_dims=[0]),
        "sum-of-three": Matern32(0.7, 1.3) + RBF(ard, 0.4) + RationalQuadratic(1.5, 0.2),
        "sum-of-all": Matern52(ard, 0.9) + Linear(2.0, 0.3) + Constant(0.6) + Matern12(2.0, 0.5),
        "sum-small-first": RBF(ard, 1e-3) + Matern32(0.7, 2.0),
        "scaled": Constant(2.5) * Matern52(ard, 0.5),
        "scaled-sum": 0.3 * Matern12(0.8) + 1.7 * RBF(ard, 0.7) + Constant(0.2) * Constant(3.0),
    }


def scaled_for(kernel, d):
    """Lengthscales that keep k away from 0 in d dimensions."""
    for name, h in kernel.hyperparameters().items():
        if name.endswith("lengthscale"):
            kernel[name] = h.value * max(1.0, np.sqrt(d / 2))
    return kernel


# name: n, m (None: symmetric), d, t. Tiles of the native core have 256 points, panels 1024,
# sets of columns 12 and 16; differences are used up to d = 4, products from d = 5.
SHAPES = {
    "one": (1, None, 1, 1),
    "one-by-one": (1, 1, 5, 3),
    "below-a-tile": (255, None, 4, 1),
    "a-tile": (256, None, 5, 11),
    "over-a-tile": (257, None, 13, 12),
    "over-a-panel": (1025, None, 1, 16),
    "over-a-panel-tall": (1025, 3, 2, 1),
    "over-a-panel-wide": (2, 1025, 9, 17),
    "two-sets": (257, 300, 4, 40),
    "d30": (70, None, 30, 17),
    "d100": (65, 40, 100, 3),
    "d385": (20, None, 385, 12),
}
COVER = ["matern32", "sum-of-all"]  # in every shape
KERNEL_SHAPES = ["kernels", "kernels-rectangular"]  # for every kernel
SHAPES |= {"kernels": (259, None, 2, 3), "kernels-rectangular": (70, 130, 9, 17)}

# What real tables contain. Each changes normal points in place.
DATA = {}


def data(function):
    DATA[function.__name__.replace("_", "-")] = function
    return function


@data
def duplicates(X, rng):
    X[::3] = X[0]


@data
def near_duplicates(X, rng):
    X[1::2] = X[::2][: len(X[1::2])] + 1e-6


@data
def constant_column(X, rng):
    X[:, -1] = 7.0


@data
def huge_feature(X, rng):
    # Few values, as of an id or a year in seconds: rows that agree in it are neighbours.
    X[:, 0] = 1e6 * rng.integers(0, 3, len(X))


@data
def offset(X, rng):
    X += 1e3


@data
def far_clusters(X, rng):
    X *= 0.3
    X += 10 * rng.integers(0, 4, (len(X), 1))


@cache
def problem(case, shape, dataset=None):
    """Kernel, points, right-hand sides and the dense K."""
    n, m, d, t = SHAPES[shape] if isinstance(shape, str) else shape
    rng = np.random.default_rng(n + d)
    X = rng.normal(size=(n, d))
    Z = None if m is None else rng.normal(size=(m, d))
    if m is not None:
        Z[0] = X[0]
    if dataset:
        for points in (X,) if m is None else (X, Z):
            DATA[dataset](points, rng)
    kernel = scaled_for(kernel_cases(d)[case], d)
    V = rng.normal(size=(n if m is None else m, t))
    return kernel, X, Z, V, reference.matrix(kernel, X, X if Z is None else Z)


def supported(cases):
    """engine, case: those kernels that the engine says it runs."""
    X, kernels = torch.ones(2, 2, dtype=torch.float64), kernel_cases(2)
    return [
        pytest.param(name, case, id=f"{name}-{case}")
        for name, engine in ENGINES.items()
        for case in cases
        if engine.supports(kernels[case], X, None, torch.float64).ok
    ]


def check_values(engine, dtype, kernel, X, Z, V, K, rtol):
    """matmul, block and diagonal of one problem."""
    operator = KernelOperator(X, kernel, Z, engine=ENGINES[engine], dtype=dtype)
    largest = np.abs(K).max()
    product = operator.matmul(V)
    assert product.dtype == torch.float64
    assert product.shape == (len(X), V.shape[1])
    # Entries are good to rtol of the largest, and weighed by |V|.
    error = np.abs(product.numpy() - K @ V).max(axis=0)
    scale = np.maximum((np.abs(K) @ np.abs(V)).max(axis=0), largest * np.abs(V).max(axis=0))
    assert (error <= rtol * scale).all(), (error / scale).max()

    block = operator.block()
    assert block.dtype == getattr(torch, dtype)
    np.testing.assert_allclose(block, K, rtol=0, atol=rtol * largest)
    some = operator.block([len(X) - 1, 0], slice(None, None, 7))
    np.testing.assert_allclose(some, K[[len(X) - 1, 0], ::7], rtol=0, atol=rtol * largest)
    if Z is None:
        np.testing.assert_allclose(operator.diagonal(), K.diagonal(), rtol=1e-13, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("engine", "case"), supported(kernel_cases(2)))
def test_values_of_every_kernel(engine, case, dtype):
    for shape in KERNEL_SHAPES:
        check_values(engine, dtype, *problem(case, shape), DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s not in KERNEL_SHAPES])
@pytest.mark.parametrize(("engine", "case"), supported(COVER))
def test_values_of_every_shape(engine, case, shape, dtype):
    check_values(engine, dtype, *problem(case, shape), DTYPES[dtype])


RADIAL = ["matern12", "matern32", "matern52", "rbf-ard", "rational-quadratic", "sum-of-three"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dataset", DATA)
@pytest.mark.parametrize(("engine", "case"), supported(RADIAL))
def test_values_on_awkward_points(engine, case, dataset, dtype):
    for shape in [(300, None, 3, 2), (300, None, 9, 2), (270, 40, 6, 13)]:
        check_values(engine, dtype, *problem(case, shape, dataset), DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [2, 9])
@pytest.mark.parametrize(("engine", "case"), supported(RADIAL))
def test_points_out_of_reach_of_floats_squared(engine, case, d, dtype):
    rng = np.random.default_rng(0)
    X, ones = rng.normal(size=(40, d)), np.ones((40, 1))
    X[:, 0] *= 1e30
    X[1] = X[0]
    kernel = kernel_cases(d)[case]
    operator = KernelOperator(X, kernel, engine=ENGINES[engine], dtype=dtype)
    # Every other distance is beyond 1e25, where K is the identity up to 1e-15 (rq: 1e-30).
    expected = reference.matrix(kernel, X, X)
    np.testing.assert_allclose(operator.block(), expected, rtol=0, atol=DTYPES[dtype])
    np.testing.assert_allclose(operator.matmul(ones), expected @ ones, atol=40 * DTYPES[dtype])
    assert all(g.isfinite().all() for g in operator.gradient(ones, ones, inputs=True).values())


# ---- gradients ------------------------------------------------------------------------------


def derivatives_by_hyperparameters(kernel, X, Z, step=1e-5):
    """dK / d(value), for every unfrozen one: by name, [entry of the value] -> n x m."""
    found = {}
    for name, value in reference.values(kernel).items():
        found[name] = {}
        for i in np.ndindex(value.shape):
            up, down = kernel.copy(), kernel.copy()
            high, low = value.copy(), value.copy()
            high[i], low[i] = value[i] * (1 + step), value[i] * (1 - step)
            up[name], down[name] = high, low
            rise = reference.matrix(up, X, Z) - reference.matrix(down, X, Z)
            found[name][i] = rise / (2 * step * value[i])
    return found


def derivatives_by_inputs(kernel, X, Z, step=1e-5):
    """dk(x_i, z_j) / dx_i: [column] -> n x m."""
    found = []
    for c in range(X.shape[1]):
        e = step * np.eye(X.shape[1])[c]
        rise = reference.matrix(kernel, X + e, Z) - reference.matrix(kernel, X - e, Z)
        found.append(rise / (2 * step))
    return found


@cache
def gradient_problem(case, n, m, d, t):
    """Kernel, points, U, W, and by name: the gradient and its scale, the sum of |terms|."""
    kernel, X, Z, W, _ = problem(case, (n, m, d, t))
    symmetric, other = Z is None, X if Z is None else Z
    U = np.random.default_rng(1).normal(size=(n, t))
    B = U @ W.T
    expected = {}
    for name, entries in derivatives_by_hyperparameters(kernel, X, other).items():
        shape = kernel[name].shape
        total, scale = np.zeros(shape), np.zeros(shape)
        for i, D in entries.items():
            total[i], scale[i] = np.sum(B * D), np.sum(np.abs(B * D))
        expected[name] = total, scale.max()
    both = B + B.T if symmetric else B  # k(x_i, x_j) moves with x_i in row i and in column i
    terms = [both * D for D in derivatives_by_inputs(kernel, X, other)]
    expected["X"] = np.sum(terms, axis=2).T, np.abs(terms).sum(axis=2).max()
    if not symmetric:
        terms = [B.T * D for D in derivatives_by_inputs(kernel, other, X)]
        expected["Z"] = np.sum(terms, axis=2).T, np.abs(terms).sum(axis=2).max()
    return kernel, X, Z, U, W, expected


def check_gradient(engine, dtype, case, shape):
    kernel, X, Z, U, W, expected = gradient_problem(case, *shape)
    operator = KernelOperator(X, kernel, Z, engine=ENGINES[engine], dtype=dtype)
    found = operator.gradient(U, W, inputs=True)
    assert found.keys() == expected.keys()
    for name, (value, scale) in expected.items():
        assert found[name].dtype == torch.float64
        assert found[name].shape == value.shape
        # 1e-8: what central differences with a step of 1e-5 are good for.
        atol = GRADIENT_DTYPES[dtype] * scale + 1e-8 * np.abs(U).sum() * np.abs(W).max()
        np.testing.assert_allclose(found[name], value, rtol=0, atol=atol, err_msg=name)
    # Without those by inputs less is computed, in another order, but nothing else.
    for name, value in operator.gradient(U, W).items():
        atol = GRADIENT_DTYPES[dtype] * expected[name][1]
        np.testing.assert_allclose(value, found[name], rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("dtype", GRADIENT_DTYPES)
@pytest.mark.parametrize(("engine", "case"), supported(kernel_cases(2)))
def test_gradient_of_every_kernel(engine, case, dtype):
    for shape in [(60, None, 2, 3), (30, 20, 6, 1)]:
        check_gradient(engine, dtype, case, shape)


GRADIENT_SHAPES = [
    (1, None, 1, 1),
    (257, None, 1, 6),
    (256, 255, 4, 2),
    (258, None, 5, 17),
    (1025, None, 2, 1),
    (3, 1025, 2, 2),
    (60, None, 13, 8),
    (33, 20, 30, 40),
    (12, None, 100, 3),
]


@pytest.mark.parametrize("dtype", GRADIENT_DTYPES)
@pytest.mark.parametrize("shape", GRADIENT_SHAPES, ids=str)
@pytest.mark.parametrize(("engine", "case"), supported(["matern32-ard", "scaled-sum"]))
def test_gradient_of_every_shape(engine, case, shape, dtype):
    check_gradient(engine, dtype, case, shape)


@pytest.mark.parametrize("dtype", GRADIENT_DTYPES)
@pytest.mark.parametrize("dataset", [name for name in DATA if name != "huge-feature"])
@pytest.mark.parametrize(("engine", "case"), supported(RADIAL))
def test_gradient_on_awkward_points(engine, case, dataset, dtype):
    # Positive weights: every lengthscale then has terms of one sign, and their sum is the scale.
    # Differences can't step over the cusp of Matérn-1/2 at 1e-6, so autograd in float64 it is.
    for d in (3, 9):
        kernel, X, _, _, _ = problem(case, (170, None, d, 1), dataset)
        U, W = np.random.default_rng(2).uniform(0.5, 1.5, size=(2, 170, 2))
        found = KernelOperator(X, kernel, engine=ENGINES[engine], dtype=dtype).gradient(U, W)
        leaves = {name: v.clone().requires_grad_() for name, v in kernel.values().items()}
        centred = torch.as_tensor(X - X.mean(axis=0))
        K = kernel.bind(leaves).evaluate(centred, centred)
        B = torch.as_tensor(U @ W.T)
        expected = torch.autograd.grad((B * K).sum(), list(leaves.values()))
        for name, value in zip(leaves, expected, strict=True):
            atol = GRADIENT_DTYPES[dtype] * value.abs().max()
            np.testing.assert_allclose(found[name], value, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ENGINES)
def test_columns_of_every_size(engine, dtype):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(70, 2))
    V = np.abs(rng.normal(size=(70, 5))) * [1e300, 1e-300, 1.0, 0.0, 1e-323]
    kernel = Matern32(0.7)
    operator = KernelOperator(X, kernel, engine=ENGINES[engine], dtype=dtype)
    product, expected = operator.matmul(V).numpy(), reference.matrix(kernel, X, X) @ V
    np.testing.assert_allclose(product[:, :4], expected[:, :4], rtol=DTYPES[dtype])
    np.testing.assert_allclose(product[:, 4], expected[:, 4], rtol=0, atol=1e-321)
    assert (product[:, 3] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ENGINES)
def test_gradient_of_weights_of_every_size(engine, dtype):
    rng = np.random.default_rng(0)
    X, U, W = rng.normal(size=(9, 2)), *np.abs(rng.normal(size=(2, 9, 2)))
    operator = KernelOperator(X, Matern32(0.7), engine=ENGINES[engine], dtype=dtype)
    scale = np.array([1e300, 1e-200])
    plain, scaled = operator.gradient(U, W), operator.gradient(U * scale, W / scale)
    for name, value in plain.items():
        np.testing.assert_allclose(scaled[name], value, rtol=1e-5)
    assert all((g == 0).all() for g in operator.gradient(0 * U, W, inputs=True).values())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ENGINES)
def test_outputscales_of_every_size(engine, dtype):
    rng = np.random.default_rng(0)
    X, V = rng.normal(size=(50, 2)), np.abs(rng.normal(size=(50, 1)))
    for kernel in [RBF(1.0, 1e-30) + Matern32(1.0, 1e10), RBF(1.0, 1e10) + Matern32(1.0, 1e-30)]:
        product = KernelOperator(X, kernel, engine=ENGINES[engine], dtype=dtype).matmul(V)
        expected = reference.matrix(kernel, X, X) @ V
        np.testing.assert_allclose(product, expected, rtol=2 * DTYPES[dtype])


@pytest.mark.parametrize("engine", ENGINES)
def test_no_columns(engine):
    operator = KernelOperator(np.ones((3, 2)), Matern32(), engine=ENGINES[engine])
    nothing = np.ones((3, 0))
    assert operator.matmul(nothing).shape == (3, 0)
    gradient = operator.gradient(nothing, nothing, inputs=True)
    assert all((g == 0).all() for g in gradient.values())
    assert gradient["X"].shape == (3, 2)


@pytest.mark.parametrize("engine", ENGINES)
def test_frozen_ones_are_left_out(engine):
    X, U = np.random.default_rng(0).normal(size=(5, 2)), np.ones((5, 1))
    kernel = Matern32(0.7).freeze("outputscale") + Constant().freeze()
    assert list(KernelOperator(X, kernel, engine=ENGINES[engine]).gradient(U, U)) == [
        "0.lengthscale"
    ]
    frozen = KernelOperator(X, kernel.freeze(), engine=ENGINES[engine])
    assert frozen.gradient(U, U) == {}
    assert list(frozen.gradient(U, U, inputs=True)) == ["X"]


@pytest.mark.parametrize("engine", ENGINES)
def test_diagonal_needs_one_set(engine):
    X = torch.ones(3, 2, dtype=torch.float64)
    prepared = ENGINES[engine].prepare(RBF(), X, X[:2], torch.float32, 0.0)
    with pytest.raises(ValueError, match="diagonal: expected Z to be X"):
        prepared.diagonal()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_change_of_the_kernel_leaves_what_was_prepared(engine):
    X, V = torch.rand(5, 2, dtype=torch.float64), torch.ones(5, 1, dtype=torch.float64)
    kernel = Matern32(0.7).requires_grad_()
    prepared = ENGINES[engine].prepare(kernel, X, None, torch.float64, 0.0)
    before = prepared.matmul(V)
    assert not before.requires_grad
    kernel.lengthscale = 2.0
    assert torch.equal(prepared.matmul(V), before)
    prepared.gradient(V, V)
    assert all(raw.grad is None for raw in kernel.parameters())
