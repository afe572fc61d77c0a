"""Products whose far pairs go through polynomials, against dense float64 and their own bound."""

import math
import signal
import threading
import time

import numpy as np
import pytest
import torch

import reference
from megagp import KernelOperator
from megagp.engines import NativeEngine, Share, instruction_sets
from megagp.engines.far_field import field
from megagp.kernels import RBF, Linear, Matern12, Matern32, Matern52, Periodic, RationalQuadratic

N = 1500


@pytest.fixture(autouse=True)
def small_cells(monkeypatch):
    """Cells of few points, so that few points have a far field."""
    for d in field.DIRECT:
        monkeypatch.setitem(field.LEAF, d, 8)
        monkeypatch.setitem(field.DIRECT, d, 16.0**2)


def far(threads=2, instruction_set=None):
    return NativeEngine(threads, instruction_set, far_field=True)


def clusters(n, d):
    centres = 30 * np.random.default_rng(1).uniform(size=(5, d))
    spread = np.array([1e-3, 0.1, 0.5, 1.0, 2.0])
    which = np.arange(n) % 5
    return centres[which] + spread[which, None] * np.random.default_rng(2).normal(size=(n, d))


def constant_column(n, d):
    X = 3 * np.random.default_rng(3).uniform(size=(n, d))
    X[:, -1] = 0.7
    return X


SHAPES = {
    "uniform": lambda n, d: 4 * np.random.default_rng(4).uniform(size=(n, d)),
    "normal": lambda n, d: np.random.default_rng(5).normal(size=(n, d)),
    "clustered": clusters,
    "duplicates": lambda n, d: np.repeat(SHAPES["normal"](n // 10, d), 10, axis=0),
    "line": lambda n, d: np.linspace(0, 50, n)[:, None] * np.ones(d),
    "constant column": constant_column,
    "huge extent": lambda n, d: 1000 * np.random.default_rng(6).uniform(size=(n, d)),
    "offset": lambda n, d: 1e3 + np.random.default_rng(7).normal(size=(n, d)),
}
RADIAL = [Matern12, Matern32, Matern52, RBF, RationalQuadratic]


def check(X, kernel, operator, share_of_far=None):
    """Each entry of K within the stated error (and float32), and the product within 1e-5."""
    K = reference.matrix(kernel, X, X)
    statistics = operator.statistics
    largest = K.max()
    assert statistics.far_error <= 1e-6 * largest
    assert statistics.far_bound <= statistics.far_error * len(X)
    columns = np.random.default_rng(8).choice(len(X), min(40, len(X)), replace=False)
    E = np.zeros((len(X), len(columns)))
    E[columns, np.arange(len(columns))] = 1
    entries = operator.matmul(E).numpy()
    rounding = 1.5e-6 * largest  # of the evaluation in float32
    assert np.abs(entries - K[:, columns]).max() <= statistics.far_error + rounding
    V = np.random.default_rng(9).normal(size=(len(X), 3))
    product = K @ V
    assert np.abs(operator.matmul(V).numpy() - product).max() <= 1e-5 * np.abs(product).max()
    ones = np.random.default_rng(10).uniform(0.5, 1.5, size=len(X))
    error = np.abs(operator.matmul(ones).numpy() - K @ ones)
    assert (error <= 1e-5 * (K @ ones) + statistics.far_error * ones.sum()).all()
    allowed = statistics.far_bound * np.linalg.norm(ones) + 1e-6 * np.linalg.norm(K @ ones)
    assert np.linalg.norm(error) <= allowed + statistics.culling_bound * np.linalg.norm(ones)
    if share_of_far is not None:
        assert statistics.far_fraction >= share_of_far


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_data_of_every_shape(shape, d):
    X = SHAPES[shape](N, d)
    kernel = Matern32(1.0, 2.5)
    check(X, kernel, KernelOperator(X, kernel, engine=far()))


@pytest.mark.parametrize("lengthscale", [0.02, 0.3, 3.0, 100.0])
@pytest.mark.parametrize("family", RADIAL)
def test_kernels_and_lengthscales(family, lengthscale):
    X = SHAPES["normal"](N, 2)
    kernel = family(lengthscale)
    check(X, kernel, KernelOperator(X, kernel, engine=far(), cull_tolerance=0.0))


def test_most_pairs_are_far_where_there_are_many_points():
    for d, share in [(1, 0.8), (2, 0.5), (3, 0.2)]:
        X = SHAPES["uniform"](2 * N, d)
        check(X, Matern32(), KernelOperator(X, Matern32(), engine=far()), share_of_far=share)


def test_each_dimension_with_its_own_lengthscale():
    X = SHAPES["normal"](N, 3)
    kernel = Matern52([0.2, 1.0, 7.0], 0.3)
    check(X, kernel, KernelOperator(X, kernel, engine=far()))


def test_a_sum_of_kernels_and_a_periodic_one():
    X = SHAPES["normal"](N, 1)
    kernel = Matern32(0.5) + RationalQuadratic(2.0, 0.3, 0.7)
    check(X, kernel, KernelOperator(X, kernel, engine=far()))
    kernel = Periodic(0.9, 1.0, 2.0)
    check(X, kernel, KernelOperator(X, kernel, engine=far()))


@pytest.mark.parametrize("n", [1, 2, 3, 17, 100])
def test_few_points(n):
    X = SHAPES["normal"](n, 3)
    check(X, Matern32(), KernelOperator(X, Matern32(), engine=far()))


def test_all_points_equal():
    X = np.full((2500, 3), 1.5)
    product = KernelOperator(X, RBF(), engine=far()).matmul(np.ones(2500))
    np.testing.assert_allclose(product, 2500.0, rtol=1e-7)


@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_every_instruction_set(instruction_set):
    X = SHAPES["normal"](N, 2)
    operator = KernelOperator(X, Matern32(), engine=far(2, instruction_set))
    check(X, Matern32(), operator, share_of_far=0.2)


def test_culling_within_its_tolerance():
    X, kernel = 10 * SHAPES["uniform"](N, 2), Matern32(0.5)
    operator = KernelOperator(X, kernel, engine=far(), cull_tolerance=1e-4)
    assert operator.statistics.culled_fraction > 0.3
    assert 0 < operator.statistics.culling_bound <= 1e-4
    V = np.random.default_rng(0).normal(size=(N, 1))
    error = operator.matmul(V).numpy() - reference.matrix(kernel, X, X) @ V
    rounding = 1e-6 * math.sqrt(N)
    allowed = operator.statistics.culling_bound + operator.statistics.far_bound + rounding
    assert np.linalg.norm(error) <= allowed * np.linalg.norm(V)


@pytest.mark.parametrize("t", [1, 5, 40])
def test_the_same_bits_for_any_number_of_threads(t):
    X, V = clusters(N, 3), np.random.default_rng(0).normal(size=(N, t))
    found = [KernelOperator(X, Matern32(), engine=far(k)).matmul(V) for k in (1, 2, 5)]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("count", [1, 2, 7])
def test_shares_add_up(count):
    X, V = SHAPES["normal"](N, 3), np.random.default_rng(0).normal(size=(N, 2))
    operator = KernelOperator(X, Matern32(0.7), engine=far())
    parts = [operator.matmul(V, Share(i, count)) for i in range(count)]
    np.testing.assert_allclose(sum(parts), operator.matmul(V), rtol=0, atol=1e-11)


def test_columns_of_any_size():
    X, V = SHAPES["normal"](N, 2), np.random.default_rng(0).normal(size=(N, 4))
    operator = KernelOperator(X, Matern32(), engine=far())
    scale = np.array([2.0**-600, 1.0, 2.0**600, 0.0])
    assert (operator.matmul(V * scale).numpy() == operator.matmul(V).numpy() * scale).all()


def test_lengthscales_that_change():
    X, V = SHAPES["normal"](N, 2), np.random.default_rng(0).normal(size=(N, 1))
    kernel = Matern32(0.5)
    operator = KernelOperator(X, kernel, engine=far())
    for lengthscale in (0.5, 1.7):
        kernel.lengthscale = lengthscale
        expected = reference.matrix(Matern32(lengthscale), X, X) @ V
        np.testing.assert_allclose(operator.matmul(V), expected, atol=1e-5 * np.abs(expected).max())


# ---- where it is used -----------------------------------------------------------------------


def test_where_it_is_not_used():
    X = SHAPES["normal"](500, 3)
    cases = [
        KernelOperator(X, Matern32(), engine=far(), dtype="float64"),
        KernelOperator(X, Matern32(), X[:100], engine=far()),
        KernelOperator(X, Matern32() + Linear(), engine=far()),
        KernelOperator(SHAPES["normal"](500, 4), Matern32(), engine=far()),
        KernelOperator(1e9 * X, Matern32(), engine=far()),
        KernelOperator(X, Matern32(), engine=NativeEngine()),
        KernelOperator(X, Matern32(), engine=NativeEngine(far_field=False)),
    ]
    for operator in cases:
        assert operator.statistics.far_fraction == operator.statistics.far_error == 0


def test_used_where_it_pays():
    X = np.random.default_rng(0).uniform(size=(20_000, 2))
    assert KernelOperator(X, Matern32(0.3)).statistics.far_fraction > 0.5
    same = np.ones((20_000, 2)) + 1e-12 * X
    V = np.ones((20_000, 1))
    np.testing.assert_allclose(KernelOperator(same, Matern32()).matmul(V), 20_000.0, rtol=1e-6)


def test_many_right_hand_sides_go_the_cheaper_way():
    X = np.random.default_rng(0).normal(size=(20_000, 2))
    operator = KernelOperator(X, Matern32(), engine=NativeEngine(2))
    every = KernelOperator(X, Matern32(), engine=NativeEngine(2, far_field=False))
    V = np.random.default_rng(1).normal(size=(20_000, 40))
    few = operator.matmul(V[:, :1])
    np.testing.assert_allclose(few, every.matmul(V[:, :1]), atol=1e-5 * few.abs().max())
    many = operator.matmul(V)
    np.testing.assert_allclose(many, every.matmul(V), atol=1e-5 * many.abs().max())


def test_ctrl_c_stops_a_product():
    X = np.random.default_rng(0).normal(size=(60_000, 2))
    operator = KernelOperator(X, Matern32(), engine=far(1))
    V = np.random.default_rng(1).normal(size=(60_000, 64))
    operator.statistics  # noqa: B018  prepares
    # Where tests run in the background of a shell, Ctrl-C is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.2, lambda: signal.raise_signal(signal.SIGINT)).start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            _forever(lambda: operator.matmul(V))
        assert time.monotonic() - start < 5
    finally:
        signal.signal(signal.SIGINT, before)


def _forever(run):
    while True:
        run()
