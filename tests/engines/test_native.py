"""The native engine beyond the conformance table: precision, determinism, culling, interruption."""

import signal
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
import scipy.sparse.linalg
import torch

import reference
from megagp import KernelOperator
from megagp.engines import NativeEngine, Share, TilesEngine, instruction_sets
from megagp.engines.native import FAMILIES, components
from megagp.kernels import (
    RBF,
    Constant,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    Sum,
)

SETS = instruction_sets()
RADIAL = [Matern12, Matern32, Matern52, RBF, RationalQuadratic]
DTYPES = ["float32", "float64"]


def points(n, d, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def native(instruction_set=None, threads=2):
    return NativeEngine(threads, instruction_set)


# ---- what it runs ---------------------------------------------------------------------------


def test_there_is_always_a_baseline():
    assert SETS[-1] == "baseline"
    assert NativeEngine().instruction_set == SETS[0]


@pytest.mark.parametrize("instruction_set", SETS)
def test_every_instruction_set_runs(instruction_set):
    X, V = points(20, 2), points(20, 2, 1)
    product = KernelOperator(X, RBF(), engine=native(instruction_set)).matmul(V)
    np.testing.assert_allclose(product, reference.matrix(RBF(), X, X) @ V, atol=1e-5)


def test_what_native_covers():
    X = torch.ones(2, 3, dtype=torch.float64)
    refused = {
        name
        for name, kernel in reference.kernel_cases(3).items()
        if not NativeEngine().supports(kernel, X, None, torch.float32).ok
    }
    assert refused == {"product", "nested"}


class OtherMatern(Matern32):
    def radial(self, r):
        return (-r).exp()


class OtherSum(Sum):
    def combine(self, left, right):
        return left + 2 * right


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (OtherMatern(), "native has no OtherMatern kernel"),
        (RBF() + OtherMatern(), "native has no OtherMatern kernel"),
        (OtherSum(RBF(), RBF()), "native has no OtherSum kernel"),
        (RBF() * Matern32(), "multiplies kernels by constants only"),
        (RBF() + RBF() * Linear(), "multiplies kernels by constants only"),
        (2.0 * OtherMatern(), "has no OtherMatern kernel"),
    ],
    ids=str,
)
def test_what_is_refused(kernel, reason):
    X = points(5, 2)
    with pytest.raises(ValueError, match=f"native can't run this: .*{reason}"):
        KernelOperator(X, kernel, engine="native")
    chosen = KernelOperator(X, kernel)
    assert chosen.engine.name == "tiles"
    assert reason in chosen.engine.reason
    with pytest.raises(ValueError, match=reason):
        NativeEngine().prepare(kernel, torch.as_tensor(X), None, torch.float32, 0.0)


def test_a_subclass_gets_its_own_formula():
    X = points(5, 2)
    expected = reference.matrix(Matern12(), X, X)
    np.testing.assert_allclose(KernelOperator(X, OtherMatern()).block(), expected, atol=1e-6)


def test_reasons_of_dtype_and_device():
    X = torch.ones(2, 1, dtype=torch.float64)
    assert "bfloat16" in NativeEngine().supports(RBF(), X, None, torch.bfloat16).reason
    on_meta = NativeEngine().supports(RBF(), X.to("meta"), None, torch.float32)
    assert not on_meta.ok
    assert "X is on meta" in on_meta.reason


def test_errors_of_the_constructor():
    with pytest.raises(ValueError, match="threads: expected at least 1, got 0"):
        NativeEngine(threads=0)
    with pytest.raises(ValueError, match=r"instruction_set: expected one of .*baseline.*'sse9'"):
        NativeEngine(instruction_set="sse9")


def test_terms_of_a_sum():
    kernel = RBF() + Constant() * (2.0 * Linear()) + Constant() * Constant()
    found = components(kernel)
    assert [type(c.leaf) for c in found] == [RBF, Linear, Constant]
    assert [c.scales for c in found] == [
        ("0.outputscale",),
        ("1.2.outputscale", "1.0.outputscale", "1.1.outputscale"),
        ("2.0.outputscale", "2.1.outputscale"),
    ]
    assert {type(c.leaf) for c in found} <= FAMILIES.keys()


# ---- precision ------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 5])  # differences, and products of coordinates
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", RADIAL)
@pytest.mark.parametrize("instruction_set", SETS)
def test_the_radial_function_over_its_whole_range(instruction_set, family, dtype, d):
    X, r = np.zeros((1, d)), np.geomspace(1e-12, 1e4, 20_001)
    Z = np.zeros((len(r), d))
    Z[:, 0] = r
    kernel = family(1.0, 2.5)
    block = KernelOperator(X, kernel, Z, engine=native(instruction_set), dtype=dtype).block()
    error = np.abs(block.double().numpy() - reference.matrix(kernel, X, Z))
    assert error.max() < {"float32": 5e-7, "float64": 5e-15}[dtype] * 2.5
    assert (block >= 0).all()


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 30.0, 1e4, 1e8])
@pytest.mark.parametrize("instruction_set", SETS)
def test_rational_quadratic_of_any_alpha(instruction_set, alpha):
    r = np.geomspace(1e-6, 1e4, 4001)[:, None]
    kernel = RationalQuadratic(1.0, 1.0, alpha)
    expected = np.exp(-alpha * np.log1p(r.T**2 / (2 * alpha)))
    for dtype, atol in {"float32": 1e-6, "float64": 1e-13}.items():
        operator = KernelOperator([[0.0]], kernel, r, engine=native(instruction_set), dtype=dtype)
        np.testing.assert_allclose(operator.block(), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("d", [1, 3, 5, 9])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", RADIAL)
@pytest.mark.parametrize("instruction_set", SETS)
def test_a_point_with_itself_is_the_outputscale(instruction_set, family, dtype, d):
    X = points(40, d)
    kernel = family(1.0, 1.3)
    block = KernelOperator(X, kernel, engine=native(instruction_set), dtype=dtype).block()
    assert (block.diagonal() == kernel.outputscale.to(block.dtype)).all()


@pytest.mark.parametrize("d", [3, 9])
def test_long_sums_are_float64(d):
    rng = np.random.default_rng(0)
    X, V = rng.normal(size=(50_000, d)), rng.uniform(0.5, 1.5, size=(50_000, 1))
    kernel = Matern32(np.sqrt(d))
    product = KernelOperator(X, kernel, engine=native()).matmul(V)
    rows = rng.choice(50_000, 200, replace=False)
    # The same formula, with squared distances from NumPy's matrix product in float64.
    scaled = X / np.sqrt(d)
    norms = (scaled**2).sum(axis=1)
    h = norms[rows, None] + norms - 2 * scaled[rows] @ scaled.T
    expected = reference.matern32(np.sqrt(3 * np.maximum(h, 0))) @ V
    assert np.abs(product[rows].numpy() / expected - 1).max() < 1e-6


SERIES = [Matern12, Matern32, Matern52, RBF]


@pytest.mark.parametrize("family", [Matern32, RBF])
def test_errors_of_float32_entries_are_as_if_drawn_at_random(family):
    # Independent ones of size ε would make a matrix of norm 2 √n ε. The two largest singular values
    # are those of errors that depend on each point alone, as that of its norm does.
    n = 2500
    X, k = points(n, 6), family(3.0)
    unit = torch.eye(n, dtype=torch.float64)
    E = KernelOperator(X, k).matmul(unit) - KernelOperator(X, k, dtype="float64").matmul(unit)
    third = scipy.sparse.linalg.svds(E.numpy(), k=3, return_singular_vectors=False).min()
    assert third < 2 * np.sqrt(n) * np.finfo(np.float32).eps / 2


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("t", [3, 17])  # along points, and along columns
def test_float32_sums_lose_little_more_than_entries(instruction_set, t):
    n, rng = 4096, np.random.default_rng(0)
    X = points(n, 5)
    V = rng.choice([-1.0, 1.0], size=(n, t))
    found, exact = (
        KernelOperator(X, Matern32(3.0), engine=native(instruction_set), dtype=dtype).matmul(V)
        for dtype in DTYPES
    )
    # Were it k that is summed, and not k less its mean, it would be 0.59 and more of this.
    assert (found - exact).square().mean().sqrt() < 0.45 * np.finfo(np.float32).eps * np.sqrt(n)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("family", SERIES)
@pytest.mark.parametrize("d", [3, 17])
@pytest.mark.parametrize("reach", [0.01, 0.1, 0.99])
def test_float32_of_entries_next_to_one_keeps_what_tells_them_apart(
    instruction_set, family, d, reach
):
    """V without a constant part: all of K V is in the last digits of K's entries."""
    X = points(700, d)
    X /= np.linalg.norm(X, axis=1).max()
    b = {Matern12: 1.0, Matern32: 3**0.5, Matern52: 5**0.5, RBF: 1 / np.sqrt(2)}[family]
    distance = 2 if d > 4 else np.linalg.norm(np.ptp(X, axis=0))
    size = reach**0.5 if family is RBF else reach
    kernel = family(b * distance / size, 100.0)
    V = points(700, 3, 1)
    V -= V.mean(axis=0)
    operator = KernelOperator(X, kernel, engine=native(instruction_set))
    K = reference.matrix(kernel, X, X)
    assert operator.statistics.summed < 1
    assert operator.statistics.summed >= 1 - K.min() / 100.0
    error = np.abs(operator.matmul(V).numpy() - K @ V).max()
    scale = np.abs(K - 100.0).max() * np.linalg.norm(V, axis=0).max()
    assert error < 1e-6 * scale


@pytest.mark.parametrize("family", SERIES)
def test_gradient_of_entries_next_to_one(family):
    X, U, W = points(300, 6), points(300, 4, 1), points(300, 4, 2)
    U, W = U - U.mean(axis=0), W - W.mean(axis=0)
    kernel = family(np.full(6, 80.0), 2.0)
    found = KernelOperator(X, kernel, engine=native()).gradient(U, W)
    wanted = KernelOperator(X, kernel, engine=native(), dtype="float64").gradient(U, W)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9)


def test_entries_next_to_one_are_shared_out_and_rectangular():
    X, Z, V = points(600, 5), points(500, 5, 1), points(500, 2, 2)
    kernel = Matern32(100.0, 3.0)
    operator = KernelOperator(X, kernel, Z, engine=native())
    assert operator.statistics.summed < 1
    np.testing.assert_allclose(operator.matmul(V), reference.matrix(kernel, X, Z) @ V, atol=1e-5)
    for weights in (None, (0.0, 1.0, 2.0)):
        parts = [operator.matmul(V, Share(i, 3, weights)) for i in range(3)]
        np.testing.assert_allclose(sum(parts), operator.matmul(V), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_entries_next_to_one_with_a_smaller_component_beside_them(instruction_set, order):
    X, V = points(700, 5), points(700, 3, 1)
    V -= V.mean(axis=0)
    one, two = [Matern52(200.0, 100.0), Matern12(1.0, 1e-3)][order]
    operator = KernelOperator(X, one + two, engine=native(instruction_set))
    K = reference.matrix(one + two, X, X)
    assert 1 - K.min() / 100.0 <= operator.statistics.summed < 0.1
    error = np.abs(operator.matmul(V).numpy() - K @ V).max()
    scale = np.abs(K - 100.0).max() * np.linalg.norm(V, axis=0).max()
    assert error < 1e-6 * scale
    np.testing.assert_allclose(operator.block(slice(0, 9), slice(0, 9)), K[:9, :9], rtol=1e-6)


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        (Matern32(1.0), "float32"),
        (Matern32(100.0) + Constant(1.0), "float32"),
        (RationalQuadratic(100.0), "float32"),
        (Matern32(100.0), "float64"),
    ],
)
def test_other_entries_are_summed_as_they_are(kernel, dtype):
    operator = KernelOperator(points(50, 3), kernel, engine=native(), dtype=dtype)
    assert operator.statistics.summed == 1


def test_float32_gradient_where_the_extent_is_many_lengthscales():
    # Terms x^2 and x z of a derivative must not cancel to (x - z)^2 at the precision of x^2.
    rng = np.random.default_rng(0)
    X = 0.5 * rng.normal(size=(5000, 3)) + 300 * rng.integers(0, 4, size=(5000, 1))
    U, W = rng.uniform(0.5, 1.5, size=(2, 5000, 1))
    expected = KernelOperator(X, Matern32(), engine="tiles", dtype="float64").gradient(U, W)
    found = KernelOperator(X, Matern32(), engine=native(), dtype="float32").gradient(U, W)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("extent", [10, 1000])
def test_matern12_gradient_where_the_extent_is_many_lengthscales(extent):
    # Its slope has no bound, which must not make the grid of the sums too coarse.
    rng = np.random.default_rng(0)
    X = rng.uniform(0, extent, size=(1000, 3))
    X[500:] = X[:500] + 0.3 * rng.normal(size=(500, 3))
    U, W = rng.normal(size=(2, 1000, 4))
    D = X[:, None] - X
    r = np.sqrt((D**2).sum(-1)) + np.eye(1000)
    expected = np.einsum("ij,ijd->d", (U @ W.T) * np.exp(-r) / r, D**2)
    operator = KernelOperator(X, Matern12([1.0, 1.0, 1.0]), engine=native(), dtype="float64")
    found = operator.gradient(U, W)["lengthscale"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7 * np.abs(expected).max())


# ---- the same bits --------------------------------------------------------------------------

DETERMINISM = {
    "matern12": Matern12(0.7),
    "sum": Matern32(0.7) + RBF(1.5, 0.3) + RationalQuadratic(2.0) + Linear(3.0) + Constant(0.1),
    "periodic": Periodic(0.9, 1.0, 2.0),
}


@pytest.mark.parametrize("t", [1, 17])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", DETERMINISM)
def test_the_same_bits_for_any_number_of_threads(case, dtype, t):
    X, V, U = points(2100, 3), points(2100, t, 1), points(2100, t, 2)
    for Z, W in [(None, V), (X[:1100] + 0.1, V[:1100])]:
        first = None
        for threads in (1, 2, 3, 5, 2):
            engine = native(threads=threads)
            operator = KernelOperator(X, DETERMINISM[case], Z, engine=engine, dtype=dtype)
            found = [operator.matmul(W), *operator.gradient(U, W, inputs=True).values()]
            first = first or found
            assert all(torch.equal(a, b) for a, b in zip(first, found, strict=True)), threads


@pytest.mark.parametrize("distance", [1e-9, 1e-12, 1e-15])
def test_the_same_bits_where_matern12_is_steepest(distance):
    # dk/dh grows as 1 / distance: the grid on which terms are summed must allow for it.
    X, U = points(2000, 2), points(2000, 1, 1)
    X[0] = 0
    X[1000:] = X[:1000] + distance
    found = [
        KernelOperator(X, Matern12(), engine=native(threads=threads)).gradient(U, U, inputs=True)
        for threads in (1, 2, 5)
    ]
    for other in found[1:]:
        assert all(torch.equal(other[name], value) for name, value in found[0].items())


@pytest.mark.parametrize("count", [1, 2, 7, 20])  # of 6 tasks
def test_shares_add_up(count):
    X, Z = points(2500, 3), points(1100, 3, 1)
    kernel = Matern32(0.7) + Linear(3.0)
    for other, dtype in [(None, "float32"), (Z, "float64")]:
        operator = KernelOperator(X, kernel, other, engine=native(), dtype=dtype)
        U, W = points(2500, 2, 2), points(operator.shape[1], 2, 3)
        shares = [Share(i, count) for i in range(count)]
        whole, parts = operator.matmul(W), [operator.matmul(W, share) for share in shares]
        scale = operator.matmul(np.abs(W)).abs().max().item()
        np.testing.assert_allclose(sum(parts), whole, rtol=0, atol=1e-14 * scale)
        whole = operator.gradient(U, W, inputs=True)
        parts = [operator.gradient(U, W, inputs=True, share=share) for share in shares]
        for name, value in whole.items():
            total = sum(part[name] for part in parts)
            # Derivatives pass through a difference of two sums: 1e-14 of those.
            atol = 1e-12 * max(1.0, value.abs().max().item())
            np.testing.assert_allclose(total, value, rtol=0, atol=atol, err_msg=name)


# ---- culling --------------------------------------------------------------------------------


def clusters(n, seed=0, count=60):
    """Points in [0, 1]^3, in blobs of 0.01."""
    rng = np.random.default_rng(seed)
    return rng.uniform(size=(count, 3))[rng.integers(0, count, n)] + 0.01 * rng.normal(size=(n, 3))


def spectral_norm(E):
    return float(scipy.sparse.linalg.svds(E, k=1, return_singular_vectors=False, random_state=0)[0])


@pytest.mark.parametrize("family", [Matern12, Matern32, RBF])
def test_culled_product_is_within_its_bound(family):
    X, V = clusters(20_000), points(20_000, 2)
    kernel = family(0.01)
    tolerance = 1e-3
    culled = KernelOperator(X, kernel, engine=native(), cull_tolerance=tolerance)
    whole = KernelOperator(X, kernel, engine=native(), cull_tolerance=0)
    statistics = culled.statistics
    assert whole.statistics.culled_fraction == 0
    assert whole.statistics.culling_bound == 0
    assert statistics.culled_fraction > 0.5
    assert 0 < statistics.culling_bound <= tolerance
    difference = (culled.matmul(V) - whole.matmul(V)).norm(dim=0).numpy()
    allowed = statistics.culling_bound * np.linalg.norm(V, axis=0)
    assert (difference <= allowed + 1e-9 * np.linalg.norm(V, axis=0)).all()


# name: rows, columns
CULLED_SHAPES = {"one-set": (2000, 2000), "tall": (2000, 400), "wide": (300, 2000)}


@pytest.mark.parametrize("tolerance", [1e-1, 1e-3])
@pytest.mark.parametrize("shape", CULLED_SHAPES)
@pytest.mark.parametrize("family", [Matern12, RationalQuadratic])
def test_the_bound_is_a_bound(family, shape, tolerance):
    n, m = CULLED_SHAPES[shape]
    X = clusters(n, count=12)
    Z = None if shape == "one-set" else clusters(m, 0, count=12)
    # Long tails, so that what is left out is not zero anyway.
    kernel = family(0.02) if family is Matern12 else RationalQuadratic(1e-3, 1.0, 2.0)
    operator = KernelOperator(
        X, kernel, Z, engine=native(), dtype="float64", cull_tolerance=tolerance
    )
    dense = reference.matrix(kernel, X, X if Z is None else Z)
    lost = spectral_norm(operator.matmul(np.eye(m)).numpy() - dense)
    statistics = operator.statistics
    assert lost <= statistics.culling_bound + 1e-11
    assert statistics.culling_bound <= tolerance
    if tolerance == 1e-1:
        assert statistics.culled_fraction > 0.1


@pytest.mark.parametrize(("n", "m"), [(20_000, 300), (300, 20_000), (5000, 257), (257, 257)])
def test_the_bound_keeps_the_promise_for_any_shape(n, m):
    # Every pair is about 10 apart: the loss of culling them all is known, sqrt(n m) exp(-10).
    X, Z = 1e-3 * points(n, 1), 1e-3 * points(m, 1, 1) + 10
    for factor in (0.1, 0.5, 0.9, 1.1, 2.0, 10.0):
        tolerance = factor * np.sqrt(n * m) * np.exp(-10)
        operator = KernelOperator(X, Matern12(), Z, engine=native(), cull_tolerance=tolerance)
        assert operator.statistics.culling_bound <= tolerance, factor


def test_a_sum_is_culled_only_where_all_its_parts_vanish():
    X, V, near = clusters(1500, count=6), np.ones((1500, 1)), RBF(0.01)
    fraction = {}
    for name, kernel in {"near": near, "far": near + RBF(0.08), "never": near + Linear()}.items():
        operator = KernelOperator(X, kernel, engine=native(), cull_tolerance=1e-3)
        fraction[name] = operator.statistics.culled_fraction
        K = reference.matrix(kernel, X, X)
        assert np.abs(operator.matmul(V).numpy() - K @ V).max() < 1e-3 + 1e-5 * (K @ V).max()
    assert fraction["near"] > fraction["far"] > 0
    assert fraction["never"] == 0


def test_culling_follows_the_lengthscale():
    operator = KernelOperator(clusters(5000), RBF(0.01), engine=native())
    before = operator.statistics.culled_fraction
    operator.kernel.lengthscale = 0.1
    between = operator.statistics.culled_fraction
    operator.kernel.lengthscale = 10.0
    assert before > 0.5
    assert before > between > operator.statistics.culled_fraction == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_culled_results_are_in_the_callers_order(dtype):
    X, Z = clusters(1500, count=6), clusters(700, 1, count=6)
    kernel = Matern32(0.01)
    for other in (None, Z):
        operator = KernelOperator(X, kernel, other, engine=native(), dtype=dtype)
        assert operator.statistics.culled_fraction > 0
        K = reference.matrix(kernel, X, X if other is None else other)
        np.testing.assert_allclose(operator.matmul(np.eye(K.shape[1])), K, atol=2e-5)
        np.testing.assert_allclose(operator.block(), K, atol=2e-5)


def test_culled_gradient():
    X = clusters(1500)
    U, W = np.random.default_rng(0).uniform(0.5, 1.5, size=(2, 1500, 1))
    found, expected = (
        KernelOperator(X, Matern32(0.01), engine=engine, dtype="float64").gradient(
            U, W, inputs=True
        )
        for engine in (native(), TilesEngine())
    )
    for name, value in expected.items():
        scale = value.abs().max().item()
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-9 * scale)


# ---- the outside world ----------------------------------------------------------------------

INTERRUPTED = """
import signal, sys, time
import numpy as np
from megagp import KernelOperator
from megagp.kernels import Matern32
X = np.random.default_rng(0).normal(size=(400_000, 30))
operator = KernelOperator(X, Matern32(5.0), engine="native", cull_tolerance=0)
operator.statistics
print("ready", flush=True)
try:
    operator.matmul(np.ones((400_000, 4)))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_stops_a_product():
    # A shell's background jobs ignore Ctrl-C, and so would what they start.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    options = {"stdout": subprocess.PIPE, "text": True, "preexec_fn": heed}
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED], **options) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            time.sleep(1.5)
            assert process.poll() is None
            start = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "interrupted\n"
            assert time.monotonic() - start < 1.5
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()


MEMORY = """
import resource
import numpy as np
from megagp import KernelOperator
from megagp.engines import Share
from megagp.kernels import Matern32

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

n, t = 200_000, 4
rng = np.random.default_rng(0)
KernelOperator(rng.normal(size=(2000, 3)), Matern32(), engine="native").matmul(np.ones((2000, t)))
operator = KernelOperator(rng.normal(size=(n, 3)), Matern32(), engine="native")
operator.statistics
V = np.ones((n, t))
before = peak()
operator.matmul(V, Share(0, 2000))
print((peak() - before) / (n * t * 8))
"""


def test_memory_of_a_product_is_linear():
    # V three times (checked, sorted, packed), the sums twice, the result twice: some 8 n t
    # doubles, and a workspace per thread. One byte for each pair would be 6000 of them.
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 20


def test_other_threads_run_during_a_product():
    X, V = points(30_000, 9), points(30_000, 1)
    operator = KernelOperator(X, Matern32(2.0), engine=native(threads=1))
    operator.statistics  # noqa: B018  prepares
    during, done = [], threading.Event()

    def watch():
        while not done.wait(0.005):
            during.append(time.monotonic())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.monotonic()
    operator.matmul(V)
    end = time.monotonic()
    done.set()
    watcher.join()
    inside = [moment for moment in during if start < moment < end]
    assert len(inside) >= 5, (len(inside), end - start)
    assert np.diff([start, *inside, end]).max() < 0.5 * (end - start)


def test_two_products_at_once():
    operator = KernelOperator(points(3000, 3), Matern32(), engine=native())
    V = torch.as_tensor(points(3000, 2, 1))
    expected, found = operator.matmul(V), [None] * 4

    def multiply(i):
        found[i] = operator.matmul(V)

    threads = [threading.Thread(target=multiply, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(each, expected) for each in found)
