"""Anything at all at the native boundary: a Python exception or the right numbers, no crash."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from megagp import KernelOperator, _native
from megagp.engines import NativeEngine, Share, instruction_sets
from megagp.kernels import RBF, Constant, Linear, Matern12, Matern32, Matern52, RationalQuadratic

pytestmark = pytest.mark.sanitize

REFUSED = (TypeError, ValueError, IndexError, OverflowError, MemoryError)
FAMILIES = [Matern12, Matern32, Matern52, RBF, RationalQuadratic, Constant, Linear]
PLANS = {"float32": _native.Plan32, "float64": _native.Plan64}
ATOL = {"float32": 1e-5, "float64": 1e-12}

fuzz = settings(max_examples=150, deadline=None, derandomize=True, database=None)
sizes = st.one_of(st.integers(0, 20), st.sampled_from([255, 256, 257, 600]))


def formula(family, outputscale, alpha, x, z):
    """K of one component from its features, in float64."""
    kind = FAMILIES[family]
    arguments = {"outputscale": outputscale}
    if kind is RationalQuadratic:
        arguments["alpha"] = alpha
    return reference.matrix(kind(**arguments), x, z)


def features(rng, n, d, layout):
    """n x d numbers in float64, laid out as a caller may have them."""
    F = rng.normal(size=(n, d))
    if layout == "fortran":
        return np.asfortranarray(F)
    if layout == "strided":
        wide = np.zeros((2 * n, 2 * d))
        wide[::2, ::2] = F
        return wide[::2, ::2]
    if layout == "reversed":
        return F[::-1].copy()[::-1]
    if layout == "read-only":
        F.flags.writeable = False
    if layout == "float32":
        return F.astype(np.float32)
    return F


layouts = st.sampled_from(
    ["plain", "plain", "fortran", "strided", "reversed", "read-only", "float32"]
)


@st.composite
def plans(draw):
    """Arguments of a plan, mostly right: components, symmetric, and what they are made of."""
    n, m = draw(sizes), draw(sizes)
    symmetric = draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 5)))
    components = []
    for _ in range(draw(st.integers(1, 3))):
        d = draw(st.integers(0, 12))
        components.append(
            (
                draw(st.integers(0, 6)),
                draw(st.sampled_from([0.5, 2.0, 1e3])),
                draw(st.sampled_from([0.6, 3.0])),
                features(rng, n, d, draw(layouts)),
                features(rng, m, d, draw(layouts)),
            )
        )
    return components, symmetric, n, n if symmetric else m, rng


def expected_matrix(components, symmetric):
    def double(F):
        return np.asarray(F, dtype=np.float64)

    return sum(
        formula(f, s, a, double(x), double(x if symmetric else z)) for f, s, a, x, z in components
    )


def make(dtype, components, symmetric, tolerance=0.0, instruction_set=""):
    try:
        return PLANS[dtype](components, symmetric, tolerance, instruction_set)
    except REFUSED:
        return None


def must_be_accepted(components, n, m):
    return min(n, m) > 0 and all(x.shape[1] > 0 or f == 5 for f, _, _, x, _ in components)


@given(
    plans(), st.sampled_from(list(PLANS)), layouts, layouts, st.integers(-1, 20), st.integers(-1, 4)
)
@fuzz
def test_products(made, dtype, v_layout, out_layout, t, threads):
    components, symmetric, n, m, rng = made
    plan = make(dtype, components, symmetric)
    if plan is None:
        assert not must_be_accepted(components, n, m)
        return
    v = features(rng, m, max(t, 0), v_layout)
    out = features(rng, n, max(t, 0), out_layout)
    out_before = out.copy()
    try:
        plan.matmul(v, out, threads, 0, 1)
    except REFUSED:
        assert np.array_equal(out, out_before)
        return
    assert out_layout not in ("read-only", "float32"), "wrote where it must not"
    K = expected_matrix(components, symmetric)
    scale = np.abs(K).max() * max(1.0, np.abs(v).sum(axis=0).max())
    np.testing.assert_allclose(out, K @ np.asarray(v, np.float64), rtol=0, atol=ATOL[dtype] * scale)


@given(plans(), st.sampled_from(list(PLANS)), layouts, st.sampled_from([np.float32, np.float64]))
@fuzz
def test_blocks(made, dtype, layout, out_dtype):
    components, symmetric, n, m, rng = made
    plan = make(dtype, components, symmetric)
    if plan is None:
        assert not must_be_accepted(components, n, m)
        return
    out = features(rng, n, m, layout)
    out = out if out.flags.c_contiguous is False else out.astype(out_dtype)
    try:
        plan.block(out, 2)
    except REFUSED:
        return
    assert out.dtype == dtype
    K = expected_matrix(components, symmetric)
    np.testing.assert_allclose(out, K, rtol=0, atol=ATOL[dtype] * np.abs(K).max())


@given(
    plans(),
    st.sampled_from(list(PLANS)),
    st.lists(layouts, min_size=6, max_size=6),
    st.sampled_from(["all", "none of the first", "one of the first"]),
)
@fuzz
def test_gradients_are_written_or_refused(made, dtype, where, asked):
    components, symmetric, n, m, rng = made
    plan = make(dtype, components, symmetric)
    if plan is None:
        assert not must_be_accepted(components, n, m)
        return
    u, w = features(rng, n, 2, "plain"), features(rng, m, 2, "plain")
    widths = [x.shape[1] for _, _, _, x, _ in components]
    gx = [features(rng, n, d, layout) for d, layout in zip(widths, where, strict=False)]
    gz = [features(rng, m, d, layout) for d, layout in zip(widths, where[3:], strict=False)]
    gz = [] if symmetric else gz
    if asked != "all":
        gx[0] = None
    if asked == "none of the first" and not symmetric:
        gz[0] = None
    given_arrays = [g for g in (*gx, *gz) if g is not None]
    before = [g.copy() for g in given_arrays]
    try:
        scalars = plan.gradient(u, w, gx, gz, 2, 0, 1)
    except REFUSED:
        return
    assert symmetric or asked != "one of the first"
    assert np.isfinite(scalars).all()
    # Random numbers stood in every array: none may be left as it was.
    for g, old in zip(given_arrays, before, strict=True):
        assert g.size == 0 or not np.array_equal(g, old), "written into a copy"
        assert np.isfinite(g).all()
    for (family, _, alpha, x, z), by_scale in zip(components, scalars[::3], strict=True):
        x, z = (np.asarray(F, np.float64) for F in (x, x if symmetric else z))
        K = formula(family, 1.0, alpha, x, z)
        scale = np.sum(np.abs(u @ w.T) * np.abs(K)) + np.abs(K).max()
        assert abs(by_scale - np.sum((u @ w.T) * K)) < 10 * ATOL[dtype] * scale


ODD_NUMBERS = [0, -1, 1e-320, 1e300, float("nan"), float("inf"), float("-inf"), None, "1", 10**30]


@given(
    st.sampled_from(list(PLANS)),
    st.sampled_from([0, 3, 5, 6, 7, -1, 2**31, 2**40, None, 1.5]),
    st.sampled_from([1.0, *ODD_NUMBERS]),
    st.sampled_from([1.0, *ODD_NUMBERS]),
    st.sampled_from([0.0, *ODD_NUMBERS]),
    st.sampled_from([*instruction_sets(), "", "sse9", None]),
)
@settings(fuzz, max_examples=300)
def test_odd_numbers(dtype, family, outputscale, alpha, tolerance, instruction_set):
    x = np.linspace(0, 1, 12).reshape(6, 2)
    try:
        plan = PLANS[dtype]([(family, outputscale, alpha, x, x)], True, tolerance, instruction_set)
    except REFUSED:
        return
    assert isinstance(family, int)
    assert 0 <= family <= 6
    assert outputscale > 0
    assert alpha > 0
    assert tolerance >= 0
    out = np.empty((6, 1))
    plan.matmul(np.ones((6, 1)), out, 1, 0, 2**32)
    pairs, culled, _ = plan.culling()
    assert 0 <= culled <= pairs == 1
    if outputscale == alpha == 1.0 and tolerance == 0.0:
        expected = formula(family, 1.0, 1.0, x, x).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(out, expected, atol=1e-5)


@given(
    st.sampled_from([-(2**40), -1, 0, 1, 3, 2**31, 2**32, None]),
    st.sampled_from([-(2**40), -1, 0, 1, 3, 2**32, 2**40, None]),
    st.sampled_from([-(2**40), -1, 0, 1, 3, 64, 2**31, None, 1.5]),
)
@fuzz
def test_odd_shares_and_threads(start, stop, threads):
    x = np.linspace(0, 1, 6).reshape(6, 1)
    plan = _native.Plan32([(3, 1.0, 1.0, x, x)], True, 0.0, "")
    out = np.full((6, 1), np.nan)
    try:
        plan.matmul(np.ones((6, 1)), out, threads, start, stop)
    except REFUSED:
        return
    assert threads >= 1
    assert 0 <= start <= stop <= 2**32
    # One pair of tiles: it belongs to the share in which its place in the order lies, or to none.
    whole = reference.matrix(RBF(), x, x).sum(axis=1, keepdims=True)
    if (start, stop) == (0, 2**32):
        np.testing.assert_allclose(out, whole, atol=1e-5)
    elif start == stop:
        np.testing.assert_array_equal(out, 0)
    else:
        assert np.allclose(out, whole, atol=1e-5) or (out == 0).all()


@given(st.data())
@fuzz
def test_wrong_shapes(data):
    def odd(n, d):
        return np.ones((n + data.draw(st.integers(-1, 1)), d + data.draw(st.integers(-1, 1))))

    x, z = np.ones((5, 2)), np.ones((4, 2))
    symmetric = data.draw(st.booleans())
    m = 5 if symmetric else 4
    u, w, gx, gz = odd(5, 3), odd(m, 3), odd(5, 2), odd(4, 2)
    out, block = odd(5, 3), odd(5, m)
    wrong_component = data.draw(st.booleans())
    components = [(3, 1.0, 1.0, x, z), (1, 1.0, 1.0, odd(5, 2), odd(4, 2))]
    if wrong_component:
        x2, z2 = components[1][3:]
        fits = len(x2) == 5 and (symmetric or (len(z2) == 4 and x2.shape[1] == z2.shape[1]))
        assert (make("float64", components, symmetric) is not None) == fits
        return
    plan = _native.Plan64(components[:1], symmetric, 0.0, "")
    calls = {
        "matmul": (
            lambda: plan.matmul(w, out, 1, 0, 2**32),
            [(w, (m, out.shape[1])), (out, (5, None))],
        ),
        "block": (lambda: plan.block(block, 1), [(block, (5, m))]),
        "gradient": (
            lambda: plan.gradient(u, w, [gx], [] if symmetric else [gz], 1, 0, 2**32),
            [(u, (5, w.shape[1])), (w, (m, None)), (gx, (5, 2))]
            + ([] if symmetric else [(gz, (4, 2))]),
        ),
    }
    call, expected = calls[data.draw(st.sampled_from(list(calls)))]
    fits = all(a.shape[0] == r and c in (None, a.shape[1]) for a, (r, c) in expected)
    if fits:
        call()
    else:
        with pytest.raises(REFUSED):
            call()


def test_wrong_types():
    x, out = np.ones((3, 1)), np.ones((3, 1))
    for components in [[], None, [()], [(3, 1.0, 1.0, x)], [(3, 1.0, 1.0, x[:, 0], x)], [x], "ab"]:
        with pytest.raises(REFUSED):
            _native.Plan64(components, True, 0.0, "")
    for odd in [x[:, 0], x[None], x.astype(object), x.astype(complex), [[1.0]] * 3, None, "a"]:
        with pytest.raises(REFUSED):
            _native.Plan64([(3, 1.0, 1.0, odd, odd)], True, 0.0, "")
        plan = _native.Plan64([(3, 1.0, 1.0, x, x)], True, 0.0, "")
        with pytest.raises(REFUSED):
            plan.matmul(odd, out, 1, 0, 2**32)
        with pytest.raises(REFUSED):
            plan.matmul(x, odd, 1, 0, 2**32)
        with pytest.raises(REFUSED):
            plan.block(odd, 1)


def test_a_plan_outlives_its_arrays():
    x = np.random.default_rng(0).normal(size=(300, 2))
    plan = _native.Plan64([(3, 1.0, 1.0, x.copy(), x.copy())], True, 0.0, "")
    junk = [np.full((300, 2), np.nan) for _ in range(10)]
    out = np.empty((300, 300))
    plan.block(out, 2)
    assert len(junk) == 10
    np.testing.assert_allclose(out, reference.matrix(RBF(), x, x), atol=1e-12)


@given(
    st.integers(1, 600),
    st.one_of(st.none(), st.integers(1, 300)),
    st.integers(1, 10),
    st.integers(0, 14),
    st.sampled_from(["float32", "float64"]),
    st.integers(1, 4),
    layouts,
    st.sampled_from(["matern12", "matern32", "rbf-ard", "rational-quadratic", "sum", "periodic"]),
)
@settings(fuzz, max_examples=60)
def test_operators(n, m, d, t, dtype, threads, layout, case):
    rng = np.random.default_rng(n)
    kernel = reference.kernel_cases(d)[case]
    X = features(rng, n, d, layout)
    Z = None if m is None else features(rng, m, d, layout)
    V = features(rng, n if m is None else m, t, layout)
    operator = KernelOperator(X, kernel, Z, engine=NativeEngine(threads), dtype=dtype)
    X64, Z64, V64 = (np.asarray(a, np.float64) for a in (X, X if Z is None else Z, V))
    K = reference.matrix(kernel, X64, Z64)
    # float32 weights are exact in float64, and so is everything but the entries.
    atol = ATOL[dtype] * np.abs(K).max() * max([1.0, *np.abs(V64).sum(axis=0)])
    np.testing.assert_allclose(operator.matmul(V), K @ V64, rtol=0, atol=atol)
    U = rng.normal(size=(n, t))
    gradient = operator.gradient(U, V, inputs=True)
    assert all(g.isfinite().all() for g in gradient.values())
    shares = [operator.matmul(V, Share(i, 3)) for i in range(3)]
    torch.testing.assert_close(sum(shares), operator.matmul(V), rtol=0, atol=1e-10)
