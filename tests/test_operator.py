"""KernelOperator: what it accepts, what it refuses, and its derivatives."""

import numpy as np
import pytest
import torch

import reference
from megagp import KernelOperator
from megagp.engines import NativeEngine, Share, TilesEngine
from megagp.kernels import RBF, Constant, Kernel, Linear, Matern32, Matern52, Periodic, Positive

ENGINES = ["native", "tiles"]


def points(n, d=2, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def tensor(*arguments, **keywords):
    return torch.as_tensor(points(*arguments, **keywords))


class Cauchy(Kernel):
    lengthscale = Positive()

    def evaluate(self, X, Z):
        return 1 / (1 + torch.cdist(X, Z).square() / self.lengthscale.to(X) ** 2)


# ---- inputs ---------------------------------------------------------------------------------


def reversed_view(A):
    return A[::-1].copy()[::-1]


def every_other(A):
    wide = np.zeros((2 * A.shape[0], 3 * A.shape[1]))
    wide[::2, ::3] = A
    return wide[::2, ::3]


def read_only(A):
    A = A.copy()
    A.flags.writeable = False
    return A


FORMS = {
    "numpy": lambda A: A,
    "float32": lambda A: A.astype(np.float32),
    "float16": lambda A: A.astype(np.float16),
    "big-endian": lambda A: A.astype(">f8"),
    "integers": lambda A: np.round(3 * A).astype(int),
    "unsigned": lambda A: np.round(3 * np.abs(A)).astype(np.uint8),
    "booleans": lambda A: A > 0,
    "list": lambda A: A.tolist(),
    "torch": torch.as_tensor,
    "torch-float32": lambda A: torch.as_tensor(A).float(),
    "torch-integers": lambda A: torch.as_tensor(np.round(3 * A)).int(),
    "torch-transposed": lambda A: torch.as_tensor(A.T.copy()).mT,
    "torch-expanded": lambda A: torch.as_tensor(A[:1]).expand(len(A), -1),
    "fortran": np.asfortranarray,
    "reversed": reversed_view,
    "strided": every_other,
    "read-only": read_only,
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_input(form, engine):
    X, Z, V = (FORMS[form](points(*s)) for s in [(9, 2, 0), (7, 2, 1), (7, 3, 2)])
    plain = [np.asarray(A, dtype=np.float64).copy() for A in (X, Z, V)]
    kernel = Matern32(0.7)
    for other in (Z, None):
        operator = KernelOperator(X, kernel, other, engine=engine, dtype="float64")
        rhs = V if other is not None else X
        product = operator.matmul(rhs)
        K = reference.matrix(kernel, plain[0], plain[1 if other is not None else 0])
        expected = K @ plain[2 if other is not None else 0]
        assert isinstance(product, torch.Tensor)
        assert product.dtype == torch.float64
        np.testing.assert_allclose(product, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
        np.testing.assert_allclose(operator.block(), K, rtol=0, atol=1e-12)
        operator.gradient(product, rhs, inputs=True)
    for A, before in zip((X, Z, V), plain, strict=True):
        assert np.array_equal(np.asarray(A, dtype=np.float64), before)  # nothing was changed


def test_a_vector_gives_a_vector():
    operator = KernelOperator(points(5), RBF())
    v = points(5, 1)[:, 0]
    assert operator.matmul(v).shape == (5,)
    assert torch.equal(operator.matmul(v), operator.matmul(v[:, None])[:, 0])
    by_vector, by_matrix = operator.gradient(v, v), operator.gradient(v[:, None], v[:, None])
    assert all(torch.equal(by_vector[name], by_matrix[name]) for name in by_matrix)


def test_numpy_inputs_are_copied():
    X = points(5)
    operator = KernelOperator(X, RBF())
    before = operator.matmul(np.ones(5))
    X[:] = 7
    operator.kernel.outputscale = 2.0
    torch.testing.assert_close(operator.matmul(np.ones(5)), 2 * before)


COMPLEX, OBJECTS = np.ones((5, 2), dtype=complex), np.array([[1, None]] * 5)
MESSY = points(5)
MESSY[3, 1] = np.nan
META = torch.ones(5, 2, dtype=torch.float64, device="meta")

BAD_POINTS = [
    (MESSY, ValueError, r"expected finite numbers, got nan at \[3, 1\] \(1 such"),
    (np.where(np.isnan(MESSY), np.inf, MESSY), ValueError, r"got inf at \[3, 1\]"),
    (np.ones(5), ValueError, r"expected a matrix of points .* got shape \(5,\); reshape"),
    (np.ones((5, 2, 1)), ValueError, r"got shape \(5, 2, 1\)"),
    (3.0, ValueError, r"got shape \(\)"),
    (np.ones((0, 2)), ValueError, "at least one row and one column, got 0 x 2"),
    (np.ones((5, 0)), ValueError, "at least one row and one column, got 5 x 0"),
    ([], ValueError, r"got shape \(0,\)"),
    (COMPLEX, TypeError, "expected real numbers, got an array of complex128"),
    (torch.as_tensor(COMPLEX), TypeError, "dense tensor of real numbers, got torch.complex128"),
    (OBJECTS, TypeError, "expected real numbers, got an array of object"),
    ([["a", "b"]], TypeError, "expected real numbers, got an array of <U1"),
    (None, TypeError, "expected real numbers, got an array of object"),
    (torch.eye(5).to_sparse(), TypeError, "expected a dense tensor"),
    (META, ValueError, "got a tensor on meta"),
]


@pytest.mark.parametrize(("X", "error", "message"), BAD_POINTS, ids=[m for _, _, m in BAD_POINTS])
def test_bad_points(X, error, message):
    with pytest.raises(error, match="X: .*" + message):
        KernelOperator(X, RBF())
    if X is not None:
        with pytest.raises(error, match="Z: .*" + message):
            KernelOperator(points(5), RBF(), X)


BAD_RHS = [
    (np.ones(4), ValueError, r"expected 5 rows .* got shape \(4,\)"),
    (np.ones((2, 5)), ValueError, r"expected 5 rows .* got shape \(2, 5\)"),
    (np.ones((5, 2, 1)), ValueError, r"got shape \(5, 2, 1\)"),
    (1.0, ValueError, r"got shape \(\)"),
    (MESSY, ValueError, r"expected finite numbers, got nan at \[3, 1\]"),
    (-np.inf * np.ones(5), ValueError, r"got -inf at \[0\] \(5 such"),
    (COMPLEX, TypeError, "expected real numbers"),
    (OBJECTS, TypeError, "expected real numbers"),
    (META, ValueError, "on meta"),
]


@pytest.mark.parametrize(("V", "error", "message"), BAD_RHS, ids=[m for _, _, m in BAD_RHS])
@pytest.mark.parametrize("engine", ENGINES)
def test_bad_right_hand_sides(engine, V, error, message):
    operator = KernelOperator(points(5), RBF(), engine=engine)
    with pytest.raises(error, match="V: .*" + message):
        operator.matmul(V)
    with pytest.raises(error, match="U: .*" + message):
        operator.gradient(V, np.ones((5, 2)))
    with pytest.raises(error, match="W: .*" + message):
        operator.gradient(np.ones((5, 2)), V)


BAD_ARGUMENTS = [
    ({"kernel": "rbf"}, TypeError, "kernel: expected a megagp kernel, got str"),
    ({"kernel": RBF}, TypeError, "kernel: expected a megagp kernel, got"),
    ({"kernel": RBF([1.0, 2.0, 3.0])}, ValueError, "lengthscale: expected one value, or 2"),
    ({"kernel": RBF(active_dims=[2])}, ValueError, "active_dims: expected columns below 2"),
    ({"Z": np.ones((3, 4))}, ValueError, "Z: expected 2 columns like X, got 4"),
    ({"dtype": "float16"}, ValueError, "dtype: expected 'float32' or 'float64', got 'float16'"),
    ({"dtype": torch.bfloat16}, ValueError, "dtype: expected 'float32' or 'float64'"),
    (
        {"engine": "gpu"},
        ValueError,
        "engine: expected 'auto', 'native', 'tiles', 'triton' or",
    ),
    (
        {"engine": None},
        ValueError,
        "engine: expected 'auto', 'native', 'tiles', 'triton' or",
    ),
    ({"engine": TilesEngine}, ValueError, "engine: expected 'auto', 'native', 'tiles'"),
    ({"cull_tolerance": -1.0}, ValueError, "cull_tolerance: expected a number >= 0, got -1.0"),
    ({"cull_tolerance": np.nan}, ValueError, "cull_tolerance: expected a number >= 0, got nan"),
    ({"cull_tolerance": np.inf}, ValueError, "cull_tolerance: expected a number >= 0, got inf"),
]


@pytest.mark.parametrize(
    ("arguments", "error", "message"), BAD_ARGUMENTS, ids=[m for _, _, m in BAD_ARGUMENTS]
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        KernelOperator(points(5), **({"kernel": RBF()} | arguments))


def test_bad_hyperparameters():
    operator = KernelOperator(points(5), RBF())
    with pytest.raises(ValueError, match="lengthscale: expected positive finite numbers, got -1"):
        operator.kernel.lengthscale = -1.0
    with pytest.raises(ValueError, match="W: expected as many columns as U"):
        operator.gradient(np.ones((5, 2)), np.ones((5, 3)))
    with pytest.raises(ValueError, match="a vector goes with a vector"):
        operator.gradient(np.ones(5), np.ones((5, 1)))


@pytest.mark.parametrize(("index", "count"), [(3, 3), (-1, 3), (0, 0), (5, 3), (0, -1)])
def test_bad_shares(index, count):
    with pytest.raises(ValueError, match="share: expected 0 <= index < count"):
        Share(index, count)


# ---- engines --------------------------------------------------------------------------------


def test_which_engine_and_why():
    X = points(5)
    auto = KernelOperator(X, RBF()).engine
    assert auto.name == "native"
    assert str(auto).startswith("native: auto: fused ")
    product = KernelOperator(X, RBF() * Linear()).engine
    assert product.name == "tiles"
    assert "by constants only" in product.reason
    own = KernelOperator(X, Cauchy()).engine
    assert own.name == "tiles"
    assert "no Cauchy kernel" in own.reason
    asked = KernelOperator(X, RBF(), engine="tiles").engine
    assert str(asked) == "tiles: asked for: tiles runs every kernel on every device"
    assert KernelOperator(X, RBF(), engine=NativeEngine(threads=1)).engine.name == "native"


def test_a_named_engine_that_cannot():
    with pytest.raises(
        ValueError, match=r"engine: native can't run this: .* no Cauchy .*use engine='auto'"
    ):
        KernelOperator(points(5), Cauchy(), engine="native")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_kernel_of_your_own(dtype):
    X, v = points(50), points(50, 1)[:, 0]
    operator = KernelOperator(X, Cauchy(lengthscale=0.7), dtype=dtype)
    squared = ((X[:, None] - X) ** 2).sum(axis=2)
    K = 1 / (1 + squared / 0.49)
    np.testing.assert_allclose(operator.matmul(v), K @ v, atol=1e-4)
    np.testing.assert_allclose(operator.diagonal(), np.ones(50))
    expected = v @ (2 * squared / 0.7**3 * K**2) @ v
    assert operator.gradient(v, v)["lengthscale"].item() == pytest.approx(expected, rel=1e-4)


def test_shape_and_repr():
    assert KernelOperator(points(5), RBF()).shape == (5, 5)
    operator = KernelOperator(points(5), RBF(2.0), points(3), engine="tiles")
    assert operator.shape == (5, 3)
    assert repr(operator) == "KernelOperator(5 x 3, RBF(lengthscale=2, outputscale=1), tiles)"
    assert operator.dtype == torch.float32
    assert operator.statistics.culled_fraction == 0


# ---- blocks and the diagonal ----------------------------------------------------------------

INDICES = {
    "all": None,
    "slice": slice(2, 9, 3),
    "backwards": slice(None, None, -1),
    "empty-slice": slice(5, 2),
    "beyond": slice(590, 10_000),
    "list": [3, 1, 3],
    "negative": [-1, -600],
    "one": 4,
    "empty": [],
    "range": range(3),
    "int8": np.array([5, 6], dtype=np.int8),
    "uint64": np.array([5, 599], dtype=np.uint64),
    "mask": np.arange(600) % 7 == 0,
    "mask-list": [i < 2 for i in range(600)],
    "torch": torch.tensor([7, -2]),
    "torch-mask": torch.arange(600) > 595,
    "read-only": read_only(np.array([2, 4])),
}


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("engine", ENGINES)
def test_blocks(engine, index):
    X = points(600)
    operator = KernelOperator(X, RBF(), engine=engine, dtype="float64")
    K, i = reference.matrix(RBF(), X, X), INDICES[index]
    numpy_index = slice(None) if i is None else i
    if not isinstance(numpy_index, slice):
        numpy_index = np.asarray(i).reshape(-1)
        numpy_index = numpy_index if numpy_index.dtype == bool else numpy_index.astype(int)
    for found, expected in [
        (operator.block(i), K[numpy_index]),
        (operator.block(cols=i), K[:, numpy_index]),
        (operator.block([1, 2], i), K[[1, 2]][:, numpy_index]),
    ]:
        assert found.dtype == torch.float64
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, atol=1e-12)


BAD_INDICES = [
    ([600], IndexError, "expected indices from -600 to 599, got 600 to 600"),
    ([0, -601], IndexError, "expected indices from -600 to 599, got -601 to 0"),
    (10**9, IndexError, "expected indices from -600 to 599"),
    ([True, False], IndexError, "expected a mask of 600, got 2"),
    ([0.5], TypeError, "expected integers, a mask or a slice, got torch.float64"),
    ([None], TypeError, "expected integers, a mask or a slice, got object"),
    ("ab", TypeError, "expected integers, a mask or a slice, got <U2"),
    ([1j], TypeError, "expected integers, a mask or a slice, got complex128"),
]


@pytest.mark.parametrize(
    ("index", "error", "message"), BAD_INDICES, ids=[m for _, _, m in BAD_INDICES]
)
def test_bad_blocks(index, error, message):
    operator = KernelOperator(points(600), RBF())
    with pytest.raises(error, match="rows: " + message):
        operator.block(index)
    with pytest.raises(error, match="cols: " + message):
        operator.block(None, index)


@pytest.mark.parametrize("engine", ENGINES)
def test_diagonal(engine):
    X = points(600)
    kernel = RBF(0.7, 1.3) + Linear(2.0)
    diagonal = KernelOperator(X, kernel, engine=engine).diagonal()
    assert diagonal.dtype == torch.float64
    np.testing.assert_allclose(diagonal, reference.matrix(kernel, X, X).diagonal(), rtol=1e-13)
    with pytest.raises(ValueError, match="diagonal: expected a symmetric operator"):
        KernelOperator(X, kernel, X, engine=engine).diagonal()


# ---- gradients ------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_names_of_a_gradient(engine):
    X, Z, u = points(5), points(4), np.ones((5, 1))
    kernel = 2.0 * Matern52([0.5, 1.0]) + Periodic(period=3.0).freeze("outputscale") + 0.1
    gradient = KernelOperator(X, kernel, engine=engine).gradient(u, u)
    assert list(gradient) == [
        "0.0.outputscale",
        "0.1.lengthscale",
        "0.1.outputscale",
        "1.lengthscale",
        "1.period",
        "2.outputscale",
    ]
    assert all(gradient[name].shape == kernel[name].shape for name in gradient)
    gradient = KernelOperator(X, Constant(), Z, engine=engine).gradient(u, u[:4], inputs=True)
    assert list(gradient) == ["outputscale", "X", "Z"]
    assert gradient["outputscale"].item() == pytest.approx(20)
    assert gradient["X"].shape == (5, 2)
    assert gradient["Z"].shape == (4, 2)
    assert not gradient["X"].any()


@pytest.mark.parametrize("engine", ENGINES)
def test_one_kernel_used_twice(engine):
    X, u = points(6), points(6, 1)
    shared = RBF(0.7)
    kernel = shared + Constant(0.5) * shared
    gradient = KernelOperator(X, kernel, engine=engine, dtype="float64").gradient(u, u)
    K = reference.matrix(shared, X, X)
    assert gradient["0.outputscale"].item() == pytest.approx((u.T @ K @ u).item())
    assert gradient["1.1.outputscale"].item() == pytest.approx(0.5 * (u.T @ K @ u).item())


GRADCHECK = {
    "matern32": Matern32(0.7, 1.3),
    "ard": Matern52([0.6, 1.1], 0.9),
    "sum": RBF(0.8) + Linear(1.5, 0.4) + Constant(0.3),
    "product": RBF(0.8) * Periodic(0.9, period=2.5),  # tiles only
}


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("engine", "case"),
    [(e, c) for e in ENGINES for c in GRADCHECK if (e, c) != ("native", "product")],
)
def test_autograd(engine, case, symmetric):
    kernel = GRADCHECK[case].copy()
    names = list(kernel.values())
    # Of the order 1, as gradcheck's steps and tolerances suppose.
    V = tensor(6 if symmetric else 5, 2, seed=2).requires_grad_()
    X = tensor(6).requires_grad_()
    Z = None if symmetric else tensor(5, seed=1).requires_grad_()
    raws = [kernel.hyperparameters()[name].raw.clone().requires_grad_() for name in names]

    def product(V, X, Z, *raws):
        k = kernel.bind({name: raw.exp() for name, raw in zip(names, raws, strict=True)})
        return KernelOperator(X, k, Z, engine=engine, dtype="float64", cull_tolerance=0).matmul(V)

    assert torch.autograd.gradcheck(product, (V, X, Z, *raws), eps=1e-6, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("m", [None, 7])
def test_autograd_reaches_the_raw_tensors(engine, m):
    X, Z = tensor(9), None if m is None else tensor(m, seed=1)
    V = tensor(m or 9, 2, seed=2)
    kernel = Matern32([0.6, 1.1], 1.3).freeze("outputscale").requires_grad_()
    KernelOperator(X, kernel, Z, engine=engine, dtype="float64").matmul(V).square().sum().backward()
    found = kernel.hyperparameters()["lengthscale"].raw.grad
    dense = kernel.copy().requires_grad_()
    (dense.evaluate(X, X if Z is None else Z) @ V).square().sum().backward()
    torch.testing.assert_close(found, dense.hyperparameters()["lengthscale"].raw.grad)
    assert kernel.hyperparameters()["outputscale"].raw.grad is None


@pytest.mark.parametrize("engine", ENGINES)
def test_autograd_of_float32_leaves_and_vectors(engine):
    X = tensor(6).float().requires_grad_()
    v = torch.ones(6, requires_grad=True)
    product = KernelOperator(X, RBF(), engine=engine).matmul(v)
    assert product.shape == (6,)
    product.sum().backward()
    assert X.grad.dtype == v.grad.dtype == torch.float32
    torch.testing.assert_close(v.grad.double(), product.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("m", [None, 7])
def test_backward_at_the_hyperparameters_of_the_forward(engine, m):
    X, Z = tensor(9), None if m is None else tensor(m, seed=1)
    grads = []
    for change in (False, True):
        V = tensor(m or 9, 1, seed=2).requires_grad_()
        kernel = Matern32(0.7).requires_grad_()
        operator = KernelOperator(X, kernel, Z, engine=engine, dtype="float64")
        loss = operator.matmul(V).square().sum()
        if change:
            with torch.no_grad():
                for raw in kernel.parameters():
                    raw += 1.0
            operator.matmul(V.detach())
        grads.append(torch.autograd.grad(loss, [V, *kernel.parameters()]))
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("m", [None, 7])
def test_shares_add_up_in_backward(m):
    X, Z = tensor(9), None if m is None else tensor(m, seed=1)
    V, kernel = tensor(m or 9, 1, seed=2).requires_grad_(), Matern32(0.7).requires_grad_()
    operator = KernelOperator(X, kernel, Z, engine="native", dtype="float64")
    leaves = [V, *kernel.parameters()]
    whole = torch.autograd.grad(operator.matmul(V).sum(), leaves)
    parts = [operator.matmul(V, Share(i, 3)) for i in range(3)]
    torch.testing.assert_close(torch.autograd.grad(sum(parts).sum(), leaves), whole)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_graph_unless_asked_for(engine):
    X, V = tensor(6), tensor(6, 1)
    assert not KernelOperator(X, RBF(), engine=engine).matmul(V).requires_grad
    operator = KernelOperator(X, RBF().requires_grad_(), engine=engine)
    assert operator.matmul(V).requires_grad
    with torch.no_grad():
        assert not operator.matmul(V).requires_grad
    assert not operator.block().requires_grad
    assert not operator.diagonal().requires_grad
    assert not any(g.requires_grad for g in operator.gradient(V, V, inputs=True).values())
    frozen = KernelOperator(X, RBF().freeze().requires_grad_(), engine=engine)
    assert not frozen.matmul(V).requires_grad
    with torch.inference_mode():
        KernelOperator(tensor(6), RBF(), engine=engine).matmul(tensor(6, 1))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_change_of_the_kernel_takes_effect(engine):
    X, v = points(20), np.ones(20)
    kernel = Matern32(0.7)
    operator = KernelOperator(X, kernel, engine=engine, dtype="float64")
    operator.matmul(v)
    for lengthscale in (2.0, 0.1):
        kernel.lengthscale = lengthscale
        expected = reference.matrix(Matern32(lengthscale), X, X)
        np.testing.assert_allclose(operator.matmul(v), expected @ v, rtol=1e-12)
        np.testing.assert_allclose(operator.block(), expected, atol=1e-12)
    with torch.no_grad():  # as an optimiser does it
        kernel.hyperparameters()["outputscale"].raw.add_(np.log(3.0))
    np.testing.assert_allclose(operator.matmul(v), 3 * expected @ v, rtol=1e-12)
    np.testing.assert_allclose(operator.diagonal(), 3 * np.ones(20))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_of_an_optimiser_on_the_points_takes_effect(engine):
    X, Z = tensor(20).requires_grad_(), tensor(5, seed=1).requires_grad_()
    operator = KernelOperator(X, RBF(), Z, engine=engine, dtype="float64")
    optimiser = torch.optim.SGD([X, Z], lr=0.1)
    operator.matmul(np.ones(5)).sum().backward()
    optimiser.step()
    expected = reference.matrix(RBF(), X.detach().numpy(), Z.detach().numpy())
    np.testing.assert_allclose(operator.matmul(np.ones(5)).detach(), expected.sum(axis=1))


# ---- what is counted ------------------------------------------------------------------------


def test_evaluations_are_counted_once_for_each_pass():
    X = torch.randn(300, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    K, V = KernelOperator(X, Matern32(1.0), cull_tolerance=0.0), torch.ones(300, 3)
    half = 300 * 301 / 2
    K.matmul(V)
    assert K.count.entries == half
    K.gradient(V, V)
    assert K.count.entries == 2 * half
    K.block([0, 1], slice(0, 50))
    assert K.count.entries == 2 * half + 100
    # Those of another precision are counted with them, and it is made once.
    precise = K.astype("float64")
    precise.matmul(V)
    assert K.astype("float64") is precise
    assert K.count.entries == 3 * half + 100
    rectangular = KernelOperator(X, Matern32(1.0), X[:20], cull_tolerance=0.0)
    rectangular.matmul(V[:20])
    assert rectangular.count.entries == 300 * 20


def test_entries_that_are_kept_or_culled_are_not_counted():
    X = torch.randn(600, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    V = torch.ones(600, 1)
    kept = KernelOperator(X, Matern32(1.0), cache_budget=1 << 30)
    for _ in range(3):
        kept.matmul(V)
    assert kept.count.entries == 600 * 601 / 2
    apart = torch.cat([X, X + 1e3])
    culled = KernelOperator(apart, Matern32(1.0))
    culled.matmul(torch.ones(1200, 1))
    left = 1 - culled.statistics.culled_fraction
    assert 0 < left < 0.9
    assert culled.count.entries == pytest.approx(left * 1200 * 1201 / 2)
