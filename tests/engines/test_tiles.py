"""The tiles engine against the dense reference."""

import numpy as np
import pytest
import torch

import reference
from megagp.engines.base import Share
from megagp.engines.tiles import TEMPORARIES, TilesEngine, tile_shape
from megagp.kernels import RBF, Constant, Kernel, Linear, Matern32, Positive

DTYPES = {torch.float32: 1e-5, torch.float64: 1e-12}
# One budget for which a tile is 64 x 256 pairs of float64, whatever the default is.
BUDGET = 64 * 256 * 8 * TEMPORARIES
CASES = reference.kernel_cases(1)


def points(n, d, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def prepare(kernel, X, Z=None, dtype=torch.float64, budget=BUDGET):
    X, Z = torch.as_tensor(X), None if Z is None else torch.as_tensor(Z)
    return TilesEngine(budget).prepare(kernel, X, Z, dtype, 0.0)


def assert_close(actual, expected, rtol):
    """Within rtol of the largest entry."""
    assert actual.dtype == torch.float64
    np.testing.assert_allclose(actual, expected, rtol=0, atol=rtol * np.abs(expected).max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("n", "m", "d", "t"), [(1, 1, 1, 1), (65, 257, 3, 2), (130, 5, 2, 1)])
def test_matmul_of_two_sets(case, dtype, n, m, d, t):
    kernel, X, Z, V = reference.kernel_cases(d)[case], points(n, d), points(m, d, 1), points(m, t)
    Z[0] = X[0]
    K = reference.matrix(kernel, X, Z)
    product = prepare(kernel, X, Z, dtype).matmul(torch.as_tensor(V))
    error = np.abs(product.numpy() - K @ V)
    # Rounding of entries is weighed by |V|, so the scale is |K| |V|, not |K V|.
    assert product.dtype == torch.float64
    assert (error <= DTYPES[dtype] * (np.abs(K).max() * np.abs(V).sum(axis=0))).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_matmul_and_diagonal_of_one_set(case, dtype):
    kernel, X, V = reference.kernel_cases(2)[case], points(300, 2), np.abs(points(300, 2))
    X[7] = X[3]
    K = reference.matrix(kernel, X, X)
    prepared = prepare(kernel, X, None, dtype)
    assert_close(prepared.matmul(torch.as_tensor(V)), K @ V, DTYPES[dtype])
    assert_close(prepared.diagonal(), K.diagonal(), 1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_block(case, dtype):
    kernel, X, Z = reference.kernel_cases(2)[case], points(40, 2), points(30, 2, 1)
    rows, cols = torch.tensor([3, 39, 3]), torch.tensor([0, 29])
    block = prepare(kernel, X, Z, dtype).block(rows, cols)
    assert block.dtype == dtype
    assert block.is_contiguous()
    expected = reference.matrix(kernel, X, Z)[rows][:, cols]
    np.testing.assert_allclose(block, expected, rtol=0, atol=DTYPES[dtype] * np.abs(expected).max())


@pytest.mark.parametrize("case", [case for case, k in CASES.items() if k.stationary])
def test_an_offset_costs_no_digits_of_float32(case):
    kernel, X, V = reference.kernel_cases(2)[case], points(100, 2), np.eye(100)
    offset = X + 1e3
    K = prepare(kernel, offset, None, torch.float32).matmul(torch.as_tensor(V))
    assert_close(K, reference.matrix(kernel, offset, offset), 1e-5)


def test_an_offset_of_one_part_of_a_sum():
    kernel, X = RBF(0.7) + Linear(100.0), points(100, 2) + 1e3
    K = prepare(kernel, X, None, torch.float32).matmul(torch.eye(100, dtype=torch.float64))
    assert_close(K, reference.matrix(kernel, X, X), 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", [case for case, k in CASES.items() if k.stationary])
def test_one_huge_feature(case, dtype):
    kernel, X = reference.kernel_cases(2)[case], points(40, 2)
    X[:, 0] *= 1e30
    X[1] = X[0]
    ones = torch.ones(40, 1, dtype=torch.float64)
    prepared = prepare(kernel, X, None, dtype)
    assert prepared.matmul(ones).isfinite().all()
    gradient = prepared.gradient(ones, ones, inputs=True)
    assert gradient.X.isfinite().all()
    assert all(g.isfinite().all() for g in gradient.hyperparameters.values())


def test_long_sums_are_float64():
    # 200,000 equal terms: adding them one by one in float32 would be off by 1e-3 or so.
    X, Z = torch.zeros(1, 1, dtype=torch.float64), torch.zeros(200_000, 1, dtype=torch.float64)
    V = torch.full((200_000, 1), 1 / 3, dtype=torch.float64)
    product = prepare(RBF(), X, Z, torch.float32, 2**20).matmul(V)
    assert product.item() == pytest.approx(200_000 / 3, rel=2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_huge_and_tiny_columns(dtype):
    kernel, X = Matern32(0.7), points(70, 2)
    V = np.abs(points(70, 5)) * [1e300, 1e-300, 1.0, 0.0, 1e-323]
    product = prepare(kernel, X, None, dtype).matmul(torch.as_tensor(V)).numpy()
    expected = reference.matrix(kernel, X, X) @ V
    np.testing.assert_allclose(product[:, :4], expected[:, :4], rtol=DTYPES[dtype])
    np.testing.assert_allclose(product[:, 4], expected[:, 4], rtol=0, atol=1e-321)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_gradient(case, symmetric, dtype):
    kernel, X, Z = reference.kernel_cases(2)[case], points(8, 2), points(6, 2, 1)
    if symmetric:
        Z = X
    # Positive weights, so that float32 is judged by the size of what it adds up.
    U, W = np.abs(points(8, 2, 2)), np.abs(points(len(Z), 2, 3))
    rtol = {torch.float32: 1e-4, torch.float64: 1e-7}[dtype]
    prepared = prepare(kernel, X, None if symmetric else Z, dtype)
    gradient = prepared.gradient(torch.as_tensor(U), torch.as_tensor(W), inputs=True)

    expected = reference.hyperparameter_gradient(kernel, X, Z, U, W)
    assert list(gradient.hyperparameters) == list(expected)
    for name, value in expected.items():
        assert gradient.hyperparameters[name].shape == value.shape
        assert_close(gradient.hyperparameters[name], value, rtol)

    def of_X(X):
        return reference.objective(kernel, X, X if symmetric else Z, U, W)

    def of_Z(Z):
        return reference.objective(kernel, X, Z, U, W)

    # Differences of a function of size 100 with steps of 1e-5 are good to about 1e-9.
    atol = 10 * rtol
    np.testing.assert_allclose(gradient.X, reference.input_gradient(of_X, X), rtol=0, atol=atol)
    if symmetric:
        assert gradient.Z is None
    else:
        np.testing.assert_allclose(gradient.Z, reference.input_gradient(of_Z, Z), rtol=0, atol=atol)


def test_gradient_over_many_tiles():
    kernel, X = reference.kernel_cases(3)["nested"], points(150, 3)
    U, W = torch.as_tensor(points(150, 2, 1)), torch.as_tensor(points(150, 2, 2))
    one = prepare(kernel, X, None, budget=2**30).gradient(U, W, inputs=True)
    many = prepare(kernel, X, None, budget=BUDGET // 8).gradient(U, W, inputs=True)
    for name, value in one.hyperparameters.items():
        torch.testing.assert_close(many.hyperparameters[name], value, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(many.X, one.X, rtol=1e-10, atol=1e-10)


def test_gradient_leaves_out_what_is_frozen():
    kernel, X = Matern32(0.7).freeze("outputscale") + Constant().freeze(), points(5, 2)
    U = torch.ones(5, 1, dtype=torch.float64)
    gradient = prepare(kernel, X).gradient(U, U)
    assert list(gradient.hyperparameters) == ["0.lengthscale"]
    assert gradient.X is None
    gradient = prepare(kernel.freeze(), X).gradient(U, U)
    assert gradient.hyperparameters == {}
    gradient = prepare(Constant().freeze(), X).gradient(U, U, inputs=True)
    assert torch.equal(gradient.X, torch.zeros(5, 2, dtype=torch.float64))


def test_gradient_of_huge_and_tiny_weights():
    kernel, X = Matern32(0.7), points(9, 2)
    U, W = torch.as_tensor(np.abs(points(9, 2, 1))), torch.as_tensor(np.abs(points(9, 2, 2)))
    scale = torch.tensor([1e300, 1e-200], dtype=torch.float64)
    plain = prepare(kernel, X).gradient(U, W).hyperparameters
    scaled = prepare(kernel, X, None, torch.float32).gradient(U * scale, W / scale).hyperparameters
    for name, value in plain.items():
        torch.testing.assert_close(scaled[name], value, rtol=1e-5, atol=0.0)


def test_gradient_at_duplicates_is_finite():
    for case, kernel in reference.kernel_cases(2).items():
        U = torch.ones(4, 1, dtype=torch.float64)
        gradient = prepare(kernel, np.ones((4, 2))).gradient(U, U, inputs=True)
        assert gradient.X.isfinite().all(), case
        assert all(g.isfinite().all() for g in gradient.hyperparameters.values()), case


def test_neither_the_kernel_nor_its_graph_is_touched():
    kernel, X = Matern32(0.7).requires_grad_(), points(5, 2)
    prepared = prepare(kernel, X)
    kernel.lengthscale = 2.0
    U = torch.ones(5, 1, dtype=torch.float64)
    product = prepared.matmul(U)
    assert not product.requires_grad
    expected = reference.matrix(Matern32(0.7), X, X).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(product, expected)
    with torch.no_grad():
        prepared.gradient(U, U)
    assert all(raw.grad is None for raw in kernel.parameters())


@pytest.mark.parametrize("count", [1, 3, 50])
def test_shares_add_up(count):
    kernel, X, Z = Matern32(0.7), points(150, 2), points(600, 2, 1)
    U, W = torch.as_tensor(points(150, 1, 2)), torch.as_tensor(points(600, 1, 3))
    prepared = prepare(kernel, X, Z)
    shares = [Share(i, count) for i in range(count)]
    product = sum(prepared.matmul(W, share) for share in shares)
    torch.testing.assert_close(product, prepared.matmul(W))
    parts = [prepared.gradient(U, W, inputs=True, share=share) for share in shares]
    whole = prepared.gradient(U, W, inputs=True)
    torch.testing.assert_close(sum(part.X for part in parts), whole.X)
    torch.testing.assert_close(sum(part.Z for part in parts), whole.Z)
    for name, value in whole.hyperparameters.items():
        torch.testing.assert_close(sum(part.hyperparameters[name] for part in parts), value)


@pytest.mark.parametrize("case", CASES)
def test_shapes_on_the_meta_device(case):
    X = torch.empty(300, 2, dtype=torch.float64, device="meta")
    Z = torch.empty(70, 2, dtype=torch.float64, device="meta")
    kernel = reference.kernel_cases(2)[case]
    prepared = TilesEngine(BUDGET).prepare(kernel, X, Z, torch.float32, 0.0)
    V = torch.empty(70, 3, dtype=torch.float64, device="meta")
    assert prepared.matmul(V).shape == (300, 3)
    U = torch.empty(300, 3, dtype=torch.float64, device="meta")
    gradient = prepared.gradient(U, V, inputs=True)
    assert gradient.X.shape == (300, 2)
    assert gradient.Z.shape == (70, 2)


class Cauchy(Kernel):
    lengthscale = Positive(per_dimension=True)

    def evaluate(self, X, Z):
        X, Z = X / self.lengthscale, Z / self.lengthscale
        return 1 / (1 + torch.cdist(X, Z).square())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_kernel_of_your_own(dtype):
    X, V = torch.as_tensor(points(50, 2)), torch.as_tensor(points(50, 1))
    kernel = Cauchy(lengthscale=[0.7, 1.1])
    prepared = prepare(kernel, X, None, dtype)
    expected = kernel.evaluate(X, X) @ V
    torch.testing.assert_close(prepared.matmul(V), expected, rtol=1e-4, atol=1e-4)
    assert prepared.gradient(V, V).hyperparameters["lengthscale"].shape == (2,)
    torch.testing.assert_close(prepared.diagonal(), torch.ones(50, dtype=torch.float64))


def test_a_kernel_of_your_own_that_is_wrong():
    class Sideways(Cauchy):
        def evaluate(self, X, Z):
            return super().evaluate(Z, X)

    with pytest.raises(ValueError, match=r"Sideways.evaluate: expected 3 x 2 of .* got 2 x 3"):
        prepare(Sideways(), points(3, 1), points(2, 1)).matmul(torch.ones(2, 1))


def test_no_rows():
    prepared = prepare(RBF(), np.ones((0, 2)), points(5, 2))
    assert prepared.matmul(torch.ones(5, 3)).shape == (0, 3)


def test_errors():
    with pytest.raises(ValueError, match="diagonal: expected Z to be X"):
        prepare(RBF(), points(3, 2), points(2, 2)).diagonal()
    with pytest.raises(ValueError, match="lengthscale: expected one value, or 2"):
        prepare(RBF([1.0, 2.0, 3.0]), points(3, 2))
    with pytest.raises(ValueError, match=r"float32 or float64, not torch.float16"):
        prepare(RBF(), points(3, 2), dtype=torch.float16)
    with pytest.raises(ValueError, match="memory_budget: expected a positive number"):
        TilesEngine(0)
    support = TilesEngine().supports(RBF(), torch.ones(1, 1), None, torch.bfloat16)
    assert not support.ok
    assert "bfloat16" in support.reason


@pytest.mark.parametrize("pairs", [1, 300, 2**14, 2**21])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 10**6), (10**6, 1), (1000, 1000), (10**6, 10**6)])
def test_tiles_fit_the_budget(n, m, pairs):
    height, width = tile_shape(n, m, pairs)
    assert height >= 1
    assert width % 256 == 0
    assert height * width <= max(pairs, 256)
    assert height * width >= min(n * m, pairs // 4)
