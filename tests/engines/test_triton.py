"""The triton engine without a device: its numbers in the interpreter, its choice and refusals."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import reference
from engines import triton_cases
from engines.triton_cases import CASES, clusters
from megagp import KernelOperator
from megagp.engines import Share, TritonEngine
from megagp.engines.triton.pairs import PANEL, owned, panel_pairs
from megagp.kernels import RBF, Linear, Matern32, Periodic

VALUE = {"float32": 1e-6, "float64": 1e-13}
GRADIENT = {"float32": 1e-5, "float64": 1e-8}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Everything of triton_cases.py, solved in the interpreter."""
    pytest.importorskip("triton")
    path = tmp_path_factory.mktemp("triton") / "results.npz"
    command = [sys.executable, triton_cases.__file__, str(path)]
    folder = str(Path(triton_cases.__file__).parents[1])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": folder}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(np.load(path))


@pytest.mark.parametrize("name", CASES)
def test_products_and_blocks(results, name):
    case = CASES[name]
    X, Z, V, _ = case.arrays()
    K = reference.matrix(case.kernel, X, X if Z is None else Z)
    product = results[f"{name}/matmul"]
    assert product.dtype == np.float64
    scale = (np.abs(K) @ np.abs(V)).max(axis=0)
    assert (np.abs(product - K @ V).max(axis=0) <= VALUE[case.dtype] * scale).all()
    block = results[f"{name}/block"]
    assert block.dtype == case.dtype
    atol = VALUE[case.dtype] * K.max()
    np.testing.assert_allclose(block, K[[len(X) - 1, 0], ::7], rtol=0, atol=atol)
    if Z is None:
        np.testing.assert_allclose(results[f"{name}/diagonal"], K.diagonal(), rtol=1e-13)


def by_hyperparameters(kernel, X, Z, step=1e-5):
    """dK / d(value): name -> entry -> n x m, by central differences."""
    for name, value in reference.values(kernel).items():
        for i in np.ndindex(value.shape):
            up, down = kernel.copy(), kernel.copy()
            high, low = value.copy(), value.copy()
            high[i], low[i] = value[i] * (1 + step), value[i] * (1 - step)
            up[name], down[name] = high, low
            rise = reference.matrix(up, X, Z) - reference.matrix(down, X, Z)
            yield name, i, rise / (2 * step * value[i])


def by_points(kernel, X, Z, step=1e-5):
    """dk(x_i, z_j) / dx_i: column -> n x m, by central differences."""
    for c in range(X.shape[1]):
        e = step * np.eye(X.shape[1])[c]
        yield (reference.matrix(kernel, X + e, Z) - reference.matrix(kernel, X - e, Z)) / (2 * step)


@pytest.mark.parametrize("name", [name for name in CASES if "near-duplicates" not in name])
def test_gradients(results, name):
    case = CASES[name]
    X, Z, W, U = case.arrays()
    other = X if Z is None else Z
    B = U @ W.T
    # What central differences are good for: the offset takes three digits off their steps.
    steps = 1e-8 if case.data is triton_cases.plain else 1e-6

    def check(found, terms):
        atol = GRADIENT[case.dtype] * np.abs(terms).sum() + steps * np.abs(B).sum()
        np.testing.assert_allclose(found, terms.sum(axis=-1), rtol=0, atol=atol)

    for key, i, D in by_hyperparameters(case.kernel, X, other):
        check(results[f"{name}/gradient {key}"][i], (B * D).ravel())
    both = B + B.T if Z is None else B  # k(x_i, x_j) moves with x_i in row i and in column i
    for c, D in enumerate(by_points(case.kernel, X, other)):
        check(results[f"{name}/gradient X"][:, c], both * D)
    if Z is not None:
        for c, D in enumerate(by_points(case.kernel, Z, X)):
            check(results[f"{name}/gradient Z"][:, c], B.T * D)


@pytest.mark.parametrize("name", [name for name in CASES if "near-duplicates" in name])
def test_gradients_at_near_duplicates(results, name):
    # Differences can't step over the cusp of Matérn-1/2 at 1e-6: autograd in float64. By the
    # points it has no derivative to compare: the direction between two is lost to rounding.
    case = CASES[name]
    X, _, W, U = (None if a is None else torch.as_tensor(a) for a in case.arrays())
    leaves = {key: v.clone().requires_grad_() for key, v in case.kernel.values().items()}
    K = case.kernel.bind(leaves).evaluate(X, X)
    expected = torch.autograd.grad(K, list(leaves.values()), U @ W.T)
    size = float((U.abs() @ W.abs().T).sum())
    assert np.isfinite(results[f"{name}/gradient X"]).all()
    for key, value in zip(leaves, expected, strict=True):
        found = results[f"{name}/gradient {key}"]
        np.testing.assert_allclose(found, value, rtol=0, atol=1e-6 * size)


def test_culling(results):
    kernel, X, V = clusters()
    K = reference.matrix(kernel, X, X)
    fraction, bound = results["cull/statistics"]
    assert fraction == pytest.approx(0.6)  # six of ten pairs of four clusters
    assert 0 <= bound <= 1e-6 * K.max()
    # The same rule, tiles and order as native's.
    native = KernelOperator(X, kernel, engine="native").statistics
    assert fraction == pytest.approx(native.culled_fraction)
    assert bound == pytest.approx(native.culling_bound, rel=1e-3, abs=1e-30)
    error = np.abs(results["cull/matmul"] - K @ V).max()
    assert error <= bound * np.linalg.norm(V) + 1e-6 * (np.abs(K) @ np.abs(V)).max()


def test_shares_add_up_and_bits_repeat(results):
    whole = results["share/whole"]
    np.testing.assert_array_equal(results["share/again"], whole)
    np.testing.assert_allclose(results["share/parts"], whole, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(results["share/waves"], whole, rtol=1e-12, atol=1e-12)
    for name in ("lengthscale", "outputscale"):
        expected = results[f"share/whole {name}"]
        np.testing.assert_allclose(results[f"share/parts {name}"], expected, rtol=1e-10)


def test_extreme_points_and_columns(results):
    # All points but the first two are out of each other's reach: K is the identity beside them.
    expected = np.ones((40, 1))
    expected[:2] = 2
    for name in ("Matern12", "Matern32", "Matern52", "RBF"):
        np.testing.assert_allclose(results[f"extremes/{name} matmul"], expected, rtol=1e-6)
        for key in ("lengthscale", "outputscale", "X"):
            assert np.isfinite(results[f"extremes/{name} gradient {key}"]).all()
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    X[1] = X[0]
    X = X * [1.0, 1e-30]
    V = np.abs(rng.normal(size=(40, 4))) * [1e300, 1e-300, 1.0, 0.0]
    product = reference.matrix(Matern32(), X, X) @ V
    np.testing.assert_allclose(results["extremes/columns"], product, rtol=1e-6)


def test_what_is_frozen_has_no_gradient(results):
    keys = [key for key in results if key.startswith("frozen/")]
    assert keys == ["frozen/outputscale"]
    np.testing.assert_allclose(results["frozen/outputscale"], 25.0, rtol=1e-6)


# ---- which pairs, and when ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "m"), [(1, None), (256, None), (257, None), (70 * 256, None), (600, 1)]
)
def test_every_pair_of_panels_once(n, m):
    X = torch.arange(n, dtype=torch.float64)[:, None]
    Z = None if m is None else torch.zeros(m, 1, dtype=torch.float64)
    pairs = panel_pairs(X, Z, lambda h: (-h).exp(), 0.0)
    rows = -(-n // PANEL)
    i, j = pairs.codes // pairs.columns, pairs.codes % pairs.columns
    expected = {(a, b) for a in range(rows) for b in range(a + 1 if m is None else pairs.columns)}
    assert len(pairs.codes) == len(expected)
    assert set(zip(i.tolist(), j.tolist(), strict=True)) == expected
    assert pairs.statistics.culled_fraction == 0


def test_shares_own_what_the_contract_says():
    pairs = panel_pairs(torch.zeros(40 * PANEL, 1, dtype=torch.float64), None, torch.exp, 0.0)
    for share in (Share(1, 3), Share(0, 2, (1.0, 3.0)), Share(0, 1)):
        expected = [c for c in pairs.codes.tolist() if share.owns(c // 40, c % 40)]
        assert owned(pairs, share).tolist() == expected


def test_what_is_skipped_is_within_its_bound():
    # A line of 20 panels: what lies outside a band is skipped, and its norm is known.
    X = torch.linspace(0, 40, 20 * PANEL, dtype=torch.float64)[:, None]
    pairs = panel_pairs(X, None, lambda h: (-h.sqrt()).exp(), 1e-4)
    i, j = pairs.codes.long() // pairs.columns, pairs.codes.long() % pairs.columns
    kept = torch.zeros(20, 20, dtype=torch.bool)
    kept[i, j] = kept[j, i] = True
    missing = ~kept.repeat_interleave(PANEL, 0).repeat_interleave(PANEL, 1)
    K = reference.matrix(triton_cases.Matern12(), X.numpy(), X.numpy()) * missing.numpy()
    assert 0 < np.abs(K).sum(axis=1).max() <= pairs.statistics.culling_bound <= 1e-4
    assert pairs.statistics.culled_fraction == pytest.approx(1 - len(i) / 210)


def test_too_many_panels():
    X = torch.empty(1, 1, dtype=torch.float64).expand(47_000 * PANEL, 1)
    with pytest.raises(ValueError, match=r"X: expected at most 2\*\*31 pairs"):
        panel_pairs(X, None, torch.exp, 0.0)


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (RBF() + Matern32(), "triton has no Sum kernel"),
        (Periodic(), "triton has no Periodic kernel"),
        (RBF() * Linear(), "triton multiplies one kernel by constants, not 2"),
    ],
    ids=["sum", "periodic", "product"],
)
def test_kernels_it_does_not_know(kernel, reason, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    support = TritonEngine().supports(kernel, torch.ones(2, 1), None, torch.float32)
    assert not support.ok
    assert reason in support.reason


def test_a_named_engine_that_cannot_run_says_why(monkeypatch):
    X = torch.ones(2, 1, dtype=torch.float64)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=r"triton can't run this: .*CUDA devices, and X is on"):
        KernelOperator(X, RBF(), engine="triton")
    with pytest.raises(ValueError, match=r"engine: .*X is on cpu; use the tiles engine"):
        TritonEngine().prepare(RBF(), X, None, torch.float32, 0.0)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(ValueError, match=r"float32 or float64, not torch.float16"):
        TritonEngine().prepare(RBF(), X, None, torch.float16, 0.0)
    monkeypatch.setattr("megagp.engines.triton.engine.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"Triton is not installed: pip install 'megagp\[gpu\]'"):
        KernelOperator(X, RBF(), engine="triton")
    with pytest.raises(ValueError, match="memory_budget: expected a positive number"):
        TritonEngine(0)
