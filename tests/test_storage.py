"""Files round-trip to the bit; broken and hostile ones give StorageError and nothing else."""

import contextlib
import json
import os
import pickle
import stat
import struct

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megagp import storage
from megagp.kernels import RBF, Kernel, Linear, Matern32, Positive, Product, Sum
from megagp.storage import StorageError, kernel_from_json, kernel_to_json, read, write
from reference import kernel_cases

HEADER = {"n": 3, "name": "ä \ud800", "nested": {"x": [0.1, 1e-300, None, True]}}


def tensors():
    X = torch.arange(12, dtype=torch.float64).reshape(4, 3) / 7
    return {
        "X": X,
        "view": X[1:],
        "columns": X.T,
        "single": X.float(),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
        "index": torch.tensor([3, -1]),
        "mask": torch.tensor([True, False]),
    }


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.mgp"
    storage.write(path, HEADER, tensors())
    return path


def raw_file(path, header, data=b""):
    """A safetensors file by hand: length of the header, header, data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def with_document(path, document):
    text = document if isinstance(document, str) else json.dumps(document)
    raw_file(path, {"__metadata__": {"megagp": text}})


def test_round_trip(path):
    header, found = storage.read(path)
    assert header == {**HEADER, "format": "megagp", "version": 1}
    assert found.keys() == tensors().keys()
    for name, tensor in tensors().items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_numbers_of_numpy_are_numbers(tmp_path):
    header = {"n": np.int64(3), "x": np.float32(0.5), "yes": np.bool_(True), "name": np.str_("a")}
    write(tmp_path / "m", header, {})
    found = read(tmp_path / "m")[0]
    assert {k: found[k] for k in header} == {"n": 3, "x": 0.5, "yes": True, "name": "a"}
    assert found["yes"] is True
    with pytest.raises(StorageError, match="header: expected JSON"):
        write(tmp_path / "m", {"x": np.float32("nan")}, {})


def test_only_the_file_is_left_and_it_has_the_usual_rights(path):
    assert [p.name for p in path.parent.iterdir()] == ["model.mgp"]
    (path.parent / "plain").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((path.parent / "plain").stat().st_mode)


def test_reading_does_not_hold_on_to_the_file(path):
    _, found = storage.read(path)
    path.write_bytes(b"")
    assert torch.equal(found["X"], tensors()["X"])


def test_tensors_that_require_grad_are_written(tmp_path):
    leaf = torch.ones(2, requires_grad=True)
    storage.write(tmp_path / "m", {}, {"twice": 2 * leaf})
    assert not storage.read(tmp_path / "m")[1]["twice"].requires_grad


@pytest.mark.parametrize("step", ["save_file", "_sync"])
def test_a_failing_write_leaves_the_old_file(path, monkeypatch, step):
    before = path.read_bytes()

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(storage, step, fail)
    with pytest.raises(OSError, match="disk full"):
        storage.write(path, {"n": 4}, {})
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("header", "found", "message"),
    [
        ({"x": float("nan")}, {}, "header: expected JSON"),
        ({"x": object()}, {}, "header: expected JSON"),
        ({"x": "a" * (storage.MAX_JSON + 1)}, {}, "put large arrays among the tensors"),
        ({}, {"v": torch.tensor([1.0, float("nan")])}, "v: expected finite"),
        ({}, {"v": torch.ones(2, dtype=torch.complex64)}, "v: expected at most .*complex64"),
        ({}, {"v": torch.ones(1, 1, 1, 1)}, "v: expected at most 3 dimensions"),
    ],
)
def test_what_could_not_be_read_is_not_written(tmp_path, header, found, message):
    with pytest.raises(StorageError, match=message):
        storage.write(tmp_path / "m", header, found)
    assert not list(tmp_path.iterdir())


def test_the_folder_must_exist(tmp_path):
    with pytest.raises(StorageError, match="create the folder"):
        storage.write(tmp_path / "no" / "m", {}, {})
    with pytest.raises(StorageError, match="expected a file name"):
        storage.write(tmp_path, {}, {})


def test_paths_that_are_no_files(tmp_path):
    for path in (tmp_path / "absent", tmp_path, "a\0b", "x" * 5000):
        with pytest.raises(StorageError, match="expected a"):
            storage.read(path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(StorageError, match="got a folder or device"):
            storage.read(tmp_path / "pipe")


def test_every_truncation_is_noticed(path):
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(StorageError, match=r"model\.mgp"):
            storage.read(path)


def test_a_header_whose_size_looks_like_a_pickle(path):
    """Its first bytes are those of the number 0x280, which are those of pickles as well."""
    tensors = {"a": torch.zeros(1, dtype=torch.float64)}
    seen = set()
    for extra in range(0, 4096, 8):
        write(path, {"model": "x", "text": "t" * extra}, tensors)
        start = path.read_bytes()[:2]
        seen.add(start)
        assert read(path)[0]["text"] == "t" * extra
    assert b"\x80\x02" in seen


def test_pickles_are_refused_without_being_run(path):
    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(path.parent / "exploded"),))

    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps(Bomb(), protocol))
        with pytest.raises(StorageError, match="never loaded"):
            storage.read(path)
    torch.save(torch.ones(2), path)
    with pytest.raises(StorageError, match="never loaded"):
        storage.read(path)
    assert not (path.parent / "exploded").exists()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ('{"format": "megagp", "version": 2}', "made by a newer megagp; upgrade"),
        ('{"format": "megagp", "version": 0}', "version 1"),
        ('{"format": "megagp", "version": true}', "version 1"),
        ('{"format": "megagp"}', "version 1"),
        ('{"format": "other", "version": 1}', "format 'megagp'"),
        ("[]", "format 'megagp'"),
        ("{", "expected a JSON header"),
        ('{"x": NaN}', "not finite"),
        ('{"x": 1e999}', "not finite"),
        ("[" * 100_000, "expected a JSON header"),
        ('{"a":' * 100_000, "expected a JSON header"),
        ("1" * 10_000, "megagp"),
        (" " * (storage.MAX_JSON + 1), "got 16777217 characters"),
    ],
)
def test_bad_documents(path, document, message):
    with_document(path, document)
    with pytest.raises(StorageError, match=message):
        storage.read(path)


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({}, b"", "not a megagp model"),
        ({"__metadata__": {"other": "x"}}, b"", "not a megagp model"),
        ({"__metadata__": {"megagp": 3}}, b"", "safetensors"),
        (b"{" + b'"a":' * 100_000, b"", "safetensors"),
        (b"[" * 100_000, b"", "safetensors"),
    ],
)
def test_bad_safetensors(path, header, data, message):
    raw_file(path, header, data)
    with pytest.raises(StorageError, match=message):
        storage.read(path)


@pytest.mark.parametrize("declared", [2**64 - 1, 2**63, 2**40, storage.MAX_HEADER + 1])
def test_a_huge_declared_header_allocates_nothing(path, declared):
    path.write_bytes(struct.pack("<Q", declared) + b"{}")
    os.truncate(path, storage.MAX_HEADER + 100)  # sparse, so that the length alone is at fault
    with pytest.raises(StorageError, match="something else or cut short"):
        storage.read(path)


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        ("F8_E4M3", [8], 8),
        ("BF16", [4], 8),
        ("F64", [0, 2**62, 2**62], 0),
        ("F64", [0, 2**64 - 1], 0),
        ("F64", [1] * 1000, 8),
        ("F64", [2**61], 8),
        ("F64", [-1], 8),
        ("F99", [1], 8),
    ],
)
def test_bad_tensors(path, dtype, shape, size):
    document = json.dumps({"format": "megagp", "version": 1})
    tensor = {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}
    raw_file(path, {"__metadata__": {"megagp": document}, "v": tensor}, bytes(size))
    with pytest.raises(StorageError, match=r"model\.mgp"):
        storage.read(path)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_tensors_must_be_finite(path, bad):
    whole = path.read_bytes()
    good = struct.pack("<d", 2.5)
    assert whole.count(good) == 1
    path.write_bytes(whole.replace(good, struct.pack("<d", bad)))
    with pytest.raises(StorageError, match="scalar: expected finite"):
        storage.read(path)


@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_mutations_give_a_value_or_a_storage_error(tmp_path, data):
    path = tmp_path / "fuzz.mgp"
    storage.write(path, {"kernel": kernel_to_json(RBF(0.7))}, tensors())
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        # Half of the places in the header, which is where structure can go wrong.
        place = data.draw(st.integers(0, len(content) - 1) | st.integers(0, 300))
        patch = data.draw(st.binary(min_size=1, max_size=8) | st.sampled_from(PATCHES))
        end = place + data.draw(st.integers(0, 8))
        content[place:end] = patch
    path.write_bytes(bytes(content))
    check_read(path)


PATCHES = [b'"', b"}", b"[", b"0", b"-1", b"9" * 30, b"F16", b"I64", b"null", b"\xff", b"\\u0000"]


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(content=st.binary(max_size=200))
def test_random_bytes_are_refused(tmp_path, content):
    path = tmp_path / "fuzz.mgp"
    path.write_bytes(content)
    with pytest.raises(StorageError):
        storage.read(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["tree", "class", "custom", "parts", "hyperparameters", "raw", "frozen", "n"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_mutated_kernels_give_a_kernel_or_a_storage_error(data):
    document = kernel_to_json(kernel_cases(2)["nested"])
    places = list(nodes(document))
    for _ in range(data.draw(st.integers(1, 2))):
        holder, key = data.draw(st.sampled_from(places))
        holder[key] = data.draw(JSON)
    with contextlib.suppress(StorageError):
        assert isinstance(kernel_from_json(document), Kernel)


def nodes(document):
    """Every (container, key) of a JSON document."""
    for key in list(document) if isinstance(document, dict) else range(len(document)):
        yield document, key
        if isinstance(document[key], dict | list):
            yield from nodes(document[key])


def check_read(path):
    try:
        header, found = storage.read(path)
    except StorageError:
        return
    assert header["version"] == 1
    assert all(bool(tensor.isfinite().all()) for tensor in found.values())


def test_require(path):
    header, found = storage.read(path)
    assert storage.require(header, "nested.x", list) == [0.1, 1e-300, None, True]
    assert storage.require(header, "n", float) == 3
    for key, kind in [("absent", int), ("nested.y", list), ("n.x", int), ("name", int)]:
        with pytest.raises(StorageError, match=f"{key}: expected"):
            storage.require(header, key, kind)
    with pytest.raises(StorageError, match="expected int, got bool"):
        storage.require({"flag": True}, "flag", int)
    assert storage.require_tensor(found, "X", None, 3).shape == (4, 3)
    for name, shape in [("absent", (None,)), ("X", (None,)), ("X", (None, 2)), ("single", (4, 3))]:
        with pytest.raises(StorageError, match=f"{name}: expected"):
            storage.require_tensor(found, name, *shape)


def same(left, right):
    assert type(left) is type(right)
    assert repr(left) == repr(right)
    assert left.stationary == right.stationary
    mine, yours = left.hyperparameters(), right.hyperparameters()
    assert mine.keys() == yours.keys()
    for name, h in mine.items():
        assert h.frozen == yours[name].frozen
        assert h.raw.shape == yours[name].raw.shape
        assert torch.equal(h.raw, yours[name].raw)


def through_json(kernel, **options):
    return kernel_from_json(json.loads(json.dumps(kernel_to_json(kernel))), **options)


@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("case", kernel_cases(1))
def test_kernels_round_trip_to_the_bit(case, d):
    kernel = kernel_cases(d)[case]
    kernel.freeze(next(iter(kernel.hyperparameters())))
    for h in kernel.hyperparameters().values():
        h.raw += torch.randn(h.raw.shape, generator=torch.Generator().manual_seed(1)).double()
    again = through_json(kernel)
    same(kernel, again)
    X = torch.linspace(-1, 1, 5 * d, dtype=torch.float64).reshape(5, d)
    assert torch.equal(kernel.evaluate(X, X), again.evaluate(X, X))
    assert [p.numel() for p in again.parameters()] == [p.numel() for p in kernel.parameters()]


def test_the_table_has_every_concrete_kernel():
    assert {type(k).__name__ for k in kernel_cases(1).values()} <= storage.BUILT_IN.keys()
    assert "Kernel" not in storage.BUILT_IN
    assert "Stationary" not in storage.BUILT_IN


def test_shared_hyperparameters_stay_shared():
    base = Matern32(0.5)
    again = through_json(base + Linear(2.0) * base)
    again["0.lengthscale"] = 3.0
    assert float(again["1.1.lengthscale"]) == pytest.approx(3.0)
    assert len(again.parameters()) == 4


def test_a_bound_kernel_is_saved_with_the_values_it_reads():
    bound = RBF(1.0).bind({"lengthscale": torch.tensor(0.25)})
    assert float(through_json(bound).lengthscale) == 0.25


class Polynomial(Kernel):
    offset = Positive()

    def __init__(self, degree, **options):
        super().__init__(**options)
        self.degree = degree

    def evaluate(self, X, Z):
        return (X @ Z.mT + self.offset.to(X)) ** self.degree


def test_a_users_own_kernel_needs_its_class():
    kernel = Polynomial(3, offset=0.3, active_dims=[1]) + RBF(2.0)
    with pytest.raises(StorageError, match=r'load\(path, kernels=\{"Polynomial": Polynomial\}\)'):
        through_json(kernel)
    again = through_json(kernel, kernels={"Polynomial": Polynomial})
    same(kernel, again)
    X = torch.eye(2, dtype=torch.float64)
    assert torch.equal(kernel.evaluate(X, X), again.evaluate(X, X))


def test_an_own_kernel_of_a_known_name_is_not_taken_for_ours():
    own = type("RBF", (Matern32,), {})
    with pytest.raises(StorageError, match="your own class 'RBF'"):
        through_json(own(0.5))
    assert type(through_json(own(0.5), kernels={"RBF": own})) is own
    assert type(through_json(RBF(0.5), kernels={"RBF": own})) is RBF


@pytest.mark.parametrize("wrong", [int, "Polynomial", Kernel])
def test_own_classes_must_be_kernels(wrong):
    with pytest.raises(TypeError, match="concrete subclass of Kernel"):
        through_json(Polynomial(2), kernels={"Polynomial": wrong})


def test_another_class_than_the_saved_one_is_noticed():
    with pytest.raises(StorageError, match="expected hyperparameters lengthscale, outputscale"):
        through_json(Polynomial(2), kernels={"Polynomial": RBF})


def test_what_a_file_cannot_hold_is_not_dropped():
    with pytest.raises(StorageError, match=r"Polynomial\.degree: expected a number"):
        kernel_to_json(Polynomial(torch.tensor(2)))
    kernel = RBF(1.0)
    kernel.hyperparameters()["lengthscale"].raw.fill_(1e4)
    with pytest.raises(StorageError, match="lengthscale: expected positive finite"):
        kernel_to_json(kernel)


def test_deep_kernels():
    kernel, joined = RBF(), (Sum, Product)
    for level in range(storage.MAX_DEPTH - 1):
        kernel = joined[level % 2](kernel, RBF())
    same(kernel, through_json(kernel))
    with pytest.raises(StorageError, match="at most 64 levels"):
        kernel_to_json(joined[(storage.MAX_DEPTH - 1) % 2](kernel, RBF()))
    tree = {"class": "RBF", "custom": False}
    for level in range(5000):
        tree = {"class": joined[level % 2].__name__, "custom": False, "parts": [tree]}
    with pytest.raises(StorageError, match="at most 64 levels"):
        kernel_from_json({"tree": tree, "hyperparameters": []})


def test_attributes_in_a_file_cannot_replace_methods():
    document = kernel_to_json(RBF())
    document["tree"]["attributes"] = {"evaluate": 1}
    with pytest.raises(StorageError, match=r"RBF\.evaluate: expected a plain attribute"):
        kernel_from_json(document)
