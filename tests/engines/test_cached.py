"""K kept in memory: used when the budget allows, with the same numbers."""

import numpy as np
import pytest
import torch

import reference
from megagp import KernelOperator
from megagp.engines import Cached, Share, TilesEngine
from megagp.engines.cached import CHUNK
from megagp.kernels import RBF, Matern32

ENGINES = ["native", "tiles"]
DTYPES = {"float32": 1e-5, "float64": 1e-12}


class Counting(TilesEngine):
    """Tiles that count how often they are asked for a block or a product."""

    def __init__(self):
        super().__init__()
        self.blocks = self.products = self.prepared = self.entries = 0

    def prepare(self, *arguments):
        inner = super().prepare(*arguments)
        self.prepared += 1
        block, matmul = inner.block, inner.matmul

        def counted_block(rows, cols):
            self.blocks += 1
            self.entries += len(rows) * len(cols)
            return block(rows, cols)

        def counted_matmul(*arguments):
            self.products += 1
            return matmul(*arguments)

        inner.block, inner.matmul = counted_block, counted_matmul
        return inner


def points(n, d=2, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def test_evaluated_once():
    engine = Counting()
    operator = KernelOperator(points(50), RBF(), engine=engine, cache_budget=50 * 50 * 4)
    for _ in range(3):
        operator.matmul(np.ones(50))
        operator.block([0, 1])
    assert (engine.blocks, engine.products) == (1, 0)


def test_one_byte_too_few():
    engine = Counting()
    operator = KernelOperator(points(50), RBF(), engine=engine, cache_budget=50 * 50 * 4 - 1)
    operator.matmul(np.ones(50))
    assert (engine.blocks, engine.products) == (0, 1)
    engine = Counting()
    operator = KernelOperator(
        points(50), RBF(), engine=engine, dtype="float64", cache_budget=50 * 50 * 4
    )
    operator.matmul(np.ones(50))
    assert engine.blocks == 0


def test_made_anew_when_the_kernel_changes():
    engine, X = Counting(), points(50)
    operator = KernelOperator(X, RBF(), engine=engine, dtype="float64", cache_budget=10**6)
    operator.matmul(np.ones(50))
    operator.kernel.lengthscale = 2.0
    for _ in range(2):
        product = operator.matmul(np.ones(50))
    assert engine.blocks == 2
    np.testing.assert_allclose(product, reference.matrix(RBF(2.0), X, X).sum(axis=1), rtol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("m", [None, 70])
def test_the_same_numbers(engine, dtype, m):
    X, Z = points(300), None if m is None else points(m, seed=1)
    kernel = Matern32(0.7, 1.3)
    plain, kept = (
        KernelOperator(X, kernel, Z, engine=engine, dtype=dtype, cache_budget=budget)
        for budget in (0, 10**9)
    )
    V, U = points(plain.shape[1], 3, 2), points(300, 3, 3)
    K = reference.matrix(kernel, X, X if Z is None else Z)
    product = kept.matmul(V)
    assert product.dtype == torch.float64
    np.testing.assert_allclose(product, K @ V, rtol=0, atol=300 * DTYPES[dtype])
    assert kept.matmul(V[:, 0]).shape == (300,)
    np.testing.assert_allclose(kept.block(), K, rtol=0, atol=DTYPES[dtype])
    np.testing.assert_allclose(kept.block([5, 2], slice(3)), K[[5, 2], :3], atol=DTYPES[dtype])
    if m is None:
        assert torch.equal(kept.diagonal(), plain.diagonal())
    for a, b in zip(kept.gradient(U, V).values(), plain.gradient(U, V).values(), strict=True):
        assert torch.equal(a, b)
    shares = [kept.matmul(V, Share(i, 3)) for i in range(3)]
    np.testing.assert_allclose(sum(shares), product, rtol=0, atol=300 * DTYPES[dtype])


@pytest.mark.parametrize("engine", ENGINES)
def test_through_autograd(engine):
    X, V = points(20), torch.as_tensor(points(20, 1, 1))
    kernel = Matern32(0.7).requires_grad_()
    grads = []
    for budget in (0, 10**6):
        W = V.clone().requires_grad_()
        operator = KernelOperator(X, kernel, engine=engine, dtype="float64", cache_budget=budget)
        loss = operator.matmul(W).square().sum()
        grads.append(torch.autograd.grad(loss, [W, *kernel.parameters()]))
    for plain, kept in zip(*grads, strict=True):
        torch.testing.assert_close(plain, kept)


def test_blocks_alone_keep_nothing():
    engine = Counting()
    operator = KernelOperator(points(50), RBF(), engine=engine, cache_budget=50 * 50 * 4)
    operator.block([0, 1])
    operator.block([2], [3])
    assert engine.entries == 2 * 50 + 1


def test_rows_in_chunks():
    # A row of K longer than a chunk, and more rows than fit into one.
    wide = CHUNK // 8 + 5
    X = torch.zeros(3, 1, dtype=torch.float64)
    Z = torch.zeros(wide, 1, dtype=torch.float64)
    inner = TilesEngine().prepare(RBF(), X, Z, torch.float32, 0.0)
    kept = Cached(inner, 3, wide, X.device)
    product = kept.matmul(torch.ones(wide, 1, dtype=torch.float64))
    assert torch.equal(product, torch.full((3, 1), float(wide), dtype=torch.float64))


def test_a_negative_budget():
    with pytest.raises(ValueError, match="cache_budget: expected bytes >= 0, got -1"):
        KernelOperator(points(3), RBF(), cache_budget=-1)
