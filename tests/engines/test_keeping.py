"""Entries that the native core keeps between products: the same numbers, evaluated once."""

import os
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch

from megagp import GPRegressor, KernelOperator, memory
from megagp.engines import Cached, NativeEngine, Share, instruction_sets, keeping_budget
from megagp.engines.keeping import KEEP_FROM, KEEP_SHARE
from megagp.engines.native import PreparedNative
from megagp.kernels import RBF, Linear, Matern32, Sum
from megagp.training import objective

PLENTY = 10**9


def points(n, d, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def pair(X, kernel, Z=None, engine="native", **settings):
    return (
        KernelOperator(X, kernel, Z, engine=engine, cache_budget=budget, **settings)
        for budget in (0, PLENTY)
    )


@pytest.mark.parametrize("instruction_set", instruction_sets())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("m", [None, 300])
def test_the_same_products_whatever_came_before(instruction_set, dtype, m):
    # Few columns are contracted along the points and many along the columns, in other blocks.
    X, Z = points(1100, 7), None if m is None else points(m, 7, 1)
    kernel = Sum(Matern32(1.5, 2.0), Linear(0.3))
    engine = NativeEngine(2, instruction_set)
    plain, kept = pair(X, kernel, Z, engine=engine, dtype=dtype)
    few, many = (points(plain.shape[1], t, t) for t in (1, 20))
    for V in (few, many, few):
        eps = torch.finfo(getattr(torch, dtype)).eps
        expected = plain.matmul(V)
        error = (kept.matmul(V) - expected).norm() / expected.norm()
        assert float(error) < 10 * eps
    assert torch.equal(kept.matmul(few), plain.matmul(few))
    _, other = pair(X, kernel, Z, engine=engine, dtype=dtype)
    assert torch.equal(other.matmul(many), kept.matmul(many))


def test_shares_add_up_and_keep_their_own():
    X, V = points(2100, 5), points(2100, 4, 1)
    plain, kept = pair(X, RBF(2.0))
    for _ in range(2):
        for i in range(3):
            assert torch.equal(kept.matmul(V, Share(i, 3)), plain.matmul(V, Share(i, 3)))
    assert torch.equal(kept.matmul(V), plain.matmul(V))


def test_where_tiles_are_culled():
    X = np.concatenate([points(600, 2), points(600, 2) + 1000])
    plain, kept = pair(X, RBF(), cull_tolerance=1e-3)
    assert kept.statistics == plain.statistics
    assert kept.statistics.culled_fraction > 0.2
    for _ in range(2):
        assert torch.equal(kept.matmul(X), plain.matmul(X))


def test_another_kernel_is_evaluated_anew():
    X = points(600, 3)
    plain, kept = pair(X, Matern32(1.0))
    kept.matmul(X)
    plain.kernel.lengthscale = kept.kernel.lengthscale = 2.0
    assert torch.equal(kept.matmul(X), plain.matmul(X))


def test_half_of_k_is_what_the_budget_must_hold():
    plan = KernelOperator(points(512, 4), RBF(), engine="native")._prepare()._plan
    assert plan.bytes_to_keep() == 3 * 256 * 256 * 4
    whole = KernelOperator(points(512, 4), RBF(), points(512, 4, 1), engine="native")
    assert whole._prepare()._plan.bytes_to_keep() == 4 * 256 * 256 * 4
    X = points(512, 4)
    least = plan.bytes_to_keep()
    for budget, keeps in ((least, True), (least - 1, False)):
        assert KernelOperator(X, RBF(), engine="native", cache_budget=budget).kept is keeps


def test_what_is_forgotten_is_evaluated_anew():
    X = points(600, 3)
    _, kept = pair(X, Matern32(1.0))
    first, plan = kept.matmul(X), kept._prepare()
    kept.forget()
    assert torch.equal(kept.matmul(X), first)
    assert kept._prepare() is not plan


def test_in_another_precision():
    _, kept = pair(points(600, 3), Matern32(1.0))
    assert kept.astype("float64", keep=True).kept
    assert not kept.astype("float64").kept  # for a few products beside these


KEPT = """
import os, sys
import numpy as np
from megagp import KernelOperator
from megagp.kernels import RBF
X = np.random.default_rng(0).normal(size=(8192, 4))
K = KernelOperator(X, RBF(), engine="native", cache_budget=int(sys.argv[1]))
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
K.block([0])
before = resident()
K.matmul(X)
print(resident() - before)
"""


def taken(budget):
    command = [sys.executable, "-c", KEPT, str(budget)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not memory.PAGES.exists(), reason="no /proc")
def test_memory_is_taken_by_a_product_and_not_before():
    half = 32 * 33 // 2 * 256 * 256 * 4
    assert 0.9 * half < taken(PLENTY) - taken(0) < 1.1 * half


def test_one_k_is_kept_at_a_time(monkeypatch):
    # Entries in float32 are given up where training goes over to float64.
    keep, kept = PreparedNative.keep, []

    def counted(prepared, budget):
        assert not any(ref() for ref, _ in kept)
        kept.append((weakref.ref(prepared), prepared._dtype))
        return keep(prepared, budget)

    monkeypatch.setattr(PreparedNative, "keep", counted)
    monkeypatch.setattr(objective.Objective, "_most_rounding", -1.0)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1600, KEEP_FROM))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=1600)
    GPRegressor(ard=False, training="adam", steps=1, random_state=0).fit(X, y)
    assert [dtype for _, dtype in kept[:2]] == [torch.float32, torch.float64]


def test_the_budget(monkeypatch):
    monkeypatch.setattr("megagp.engines.keeping.installed", lambda: 10**10)
    assert keeping_budget(KEEP_FROM) == KEEP_SHARE * 10**10
    assert keeping_budget(KEEP_FROM - 1) == 0


def test_features_count_and_not_columns():
    X = points(300, KEEP_FROM)
    for kernel, kept in (
        (Matern32(8.0), True),
        (Sum(Matern32(8.0), Linear(1.0)), True),
        (Matern32(1.0, active_dims=[0, 1, 2, 3]), False),
    ):
        assert KernelOperator(X, kernel, engine="native", cache_budget=None).kept is kept
    assert not KernelOperator(X, Matern32(8.0), engine="native").kept


def test_by_itself_no_other_engine_keeps():
    X = points(300, KEEP_FROM)
    operator = KernelOperator(X, Matern32(8.0), engine="tiles", cache_budget=None)
    assert not operator.kept
    assert not isinstance(operator._prepare(), Cached)


def test_a_far_field_is_not_given_up():
    X, kernel = points(600, KEEP_FROM), Matern32(1.0, active_dims=[0, 1])
    engine = NativeEngine(far_field=True)
    operator = KernelOperator(X, kernel, engine=engine, cache_budget=None)
    assert not operator.kept
    assert operator.statistics.far_fraction > 0


def test_less_memory_than_there_seemed_to_be(monkeypatch):
    prepared = KernelOperator(points(300, 4), RBF(), engine="native")._prepare()

    class Short:
        def bytes_to_keep(self):
            return 1

        def keep(self):
            raise MemoryError

    monkeypatch.setattr(prepared, "_plan", Short())
    assert prepared.keep(PLENTY) is False
    assert not prepared.kept


def in_groups(monkeypatch, folder, lines, limits):
    """A process in these control groups, of which files say what they allow."""
    (folder / "cgroup").write_text(lines)
    for name, text in limits.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(memory, "GROUPS", folder / "cgroup")
    monkeypatch.setattr(memory, "LIMITS", folder)


@pytest.mark.parametrize(
    ("lines", "limits", "expected"),
    [
        ("0::/\n", {"memory.max": "1000000\n"}, 10**6),
        ("0::/\n", {"memory.max": "max\n"}, None),
        ("0::/\n", {"memory.max": f"{2**62}\n"}, None),
        ("0::/\n", {}, None),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "5000\n"}, 5000),
        ("4:cpu:/x\n5:memory:/j\n", {"memory/j/memory.limit_in_bytes": "7000\n"}, 7000),
    ],
)
def test_memory_of_a_container(tmp_path, monkeypatch, lines, limits, expected):
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    in_groups(monkeypatch, tmp_path, lines, limits)
    assert memory.installed() == (whole if expected is None else expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_fit_is_the_same(dtype, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, KEEP_FROM))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=2000)
    means, evaluations = [], []
    for budget in (keeping_budget, lambda features: 0):
        monkeypatch.setattr("megagp.engines.native.keeping_budget", budget)
        model = GPRegressor(
            ard=False, training="adam", steps=1, rank=50, dtype=dtype, random_state=0
        )
        means.append(model.fit(X, y).predict(X[:50]))
        evaluations.append(model.diagnostics_["phases"][-1]["kernel_evaluations"])
    np.testing.assert_array_equal(*means)
    assert evaluations[0] < evaluations[1]
