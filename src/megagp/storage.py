"""The file format: safetensors with one JSON document, written atomically, read with suspicion.

A file is data: reading one checks sizes before it allocates, and never executes anything.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from megagp import kernels
from megagp.kernels import Hyperparameter, Kernel, Product, Sum

VERSION = 1
KEY = "megagp"
MAX_JSON = 16 * 2**20
# The document is a JSON string within safetensors' own JSON, where quotes are escaped.
MAX_HEADER = 3 * MAX_JSON
MAX_DEPTH = 64
# Empty shapes such as 0 x 2**62 x 2**62 make torch overflow; these sizes can't.
MAX_NDIM = 3
MAX_SIZE = 2**31 - 1

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
BUILT_IN: dict[str, type[Kernel]] = {
    name: kind
    for name, kind in vars(kernels).items()
    if inspect.isclass(kind) and issubclass(kind, Kernel) and not inspect.isabstract(kind)
}
DAMAGED = "the file is damaged or was not written by megagp; save the model again"

PathLike: TypeAlias = str | os.PathLike[str]
Plain: TypeAlias = bool | int | float | str | None


class StorageError(ValueError):
    """A file that can't be read as megagp's, or a model that can't be written as one."""


def write(path: PathLike, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write header (JSON) and tensors to one file; a failure leaves an older file as it was."""
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        raise StorageError(
            f"{path}: expected a file name in a folder that exists; create the folder first"
        )
    document = _dump({**header, "format": KEY, "version": VERSION})
    plain = {name: _writable(name, tensor) for name, tensor in tensors.items()}
    temporary = path.with_name(f".megagp-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        save_file(plain, temporary, metadata={KEY: document})
        # safetensors makes a file that its owner alone may read: back to what the umask says.
        temporary.chmod(mode)
        _sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":  # a folder can't be opened elsewhere
        _sync(path.parent)


def read(path: PathLike) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a file that `write` made; StorageError for any other."""
    path = Path(path)
    _check_outside(path)
    try:
        with safe_open(path, framework="pt") as file:
            header = _header(path, file.metadata())
            # Copies, not the mapped file: whoever truncates it later does not end this process.
            tensors = {name: _readable(path, file, name).clone() for name in list(file.keys())}
    except (SafetensorError, OSError) as error:
        raise StorageError(f"{path}: expected a safetensors file, got {error}; {DAMAGED}") from None
    return header, tensors


def require(header: Mapping[str, Any], key: str, *kinds: type) -> Any:
    """header["a"]["b"] for key "a.b", of one of the kinds; an int will do for a float."""
    found: Any = header
    for name in key.split("."):
        if not isinstance(found, Mapping) or name not in found:
            raise StorageError(f"{key}: expected in the header, got nothing; {DAMAGED}")
        found = found[name]
    allowed = (*kinds, int) if float in kinds else kinds
    # True is an int to Python, not to us.
    if not isinstance(found, allowed) or (isinstance(found, bool) and bool not in kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise StorageError(f"{key}: expected {names}, got {type(found).__name__}; {DAMAGED}")
    return found


def require_tensor(
    tensors: Mapping[str, Tensor], name: str, *shape: int | None, dtype: torch.dtype = torch.float64
) -> Tensor:
    """The tensor of that name, shape (None: any size) and dtype."""
    if name not in tensors:
        raise StorageError(f"{name}: expected among the tensors, got nothing; {DAMAGED}")
    found = tensors[name]
    fits = len(shape) == found.ndim and all(
        want in (None, size) for want, size in zip(shape, found.shape, strict=True)
    )
    if not fits or found.dtype != dtype:
        sizes = tuple("any" if size is None else size for size in shape)
        raise StorageError(
            f"{name}: expected {dtype} of shape {sizes}, "
            f"got {found.dtype} of {tuple(found.shape)}; {DAMAGED}"
        )
    return found


def kernel_to_json(kernel: Kernel) -> dict[str, Any]:
    """A kernel as plain JSON: a tree of classes, and the list of hyperparameters it points into.

    A hyperparameter that several parts share is listed once. `raw` is kept, so that a
    reloaded kernel has the same bits.
    """
    listed: dict[int, tuple[int, Hyperparameter]] = {}
    tree = _tree(kernel, listed, MAX_DEPTH)
    return {"tree": tree, "hyperparameters": [_number(h) for _, h in listed.values()]}


def kernel_from_json(
    document: Mapping[str, Any], kernels: Mapping[str, type[Kernel]] | None = None
) -> Kernel:
    """The kernel that `kernel_to_json` described; `kernels` has the user's own classes by name."""
    numbers = require(document, "hyperparameters", list)
    if not all(isinstance(number, dict) for number in numbers):
        raise StorageError(f"hyperparameters: expected a list of objects; {DAMAGED}")
    loaded: dict[int, Hyperparameter] = {}
    kernel = _grow(require(document, "tree", dict), numbers, loaded, kernels or {}, MAX_DEPTH)
    if len(loaded) != len(numbers):
        raise StorageError(
            f"hyperparameters: expected {len(loaded)}, as many as the kernel has, "
            f"got {len(numbers)}; {DAMAGED}"
        )
    return kernel


def _dump(header: Mapping[str, Any]) -> str:
    try:
        document = json.dumps(header, allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise StorageError(
            f"header: expected JSON (finite numbers, text, lists, dicts with text keys), "
            f"got {error}; convert it first"
        ) from None
    if len(document) > MAX_JSON:
        raise StorageError(
            f"header: expected at most {MAX_JSON} characters of JSON, got {len(document)}; "
            "put large arrays among the tensors"
        )
    return document


def _plain(value: Any) -> Any:
    """A number of NumPy's, as searches over settings yield them, as one of Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"an object of {type(value).__name__}")


def _writable(name: str, tensor: Tensor) -> Tensor:
    if tensor.dtype not in DTYPES.values() or tensor.ndim > MAX_NDIM:
        raise StorageError(
            f"{name}: expected at most {MAX_NDIM} dimensions of "
            f"{', '.join(str(t) for t in DTYPES.values())}, "
            f"got {tensor.ndim} of {tensor.dtype}; convert it"
        )
    if not bool(tensor.detach().isfinite().all()):
        raise StorageError(f"{name}: expected finite numbers, got NaN or infinity; fit again")
    # A clone, because safetensors refuses tensors that share memory.
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_outside(path: Path) -> None:
    """What can be told before safetensors looks: the kind of file, its size, the header's size."""
    try:
        facts = path.stat()
        # Asked before opening: that would wait for ever on a pipe.
        is_file = stat.S_ISREG(facts.st_mode)
        start = _first_bytes(path) if is_file else b""
    except (OSError, ValueError) as error:
        raise StorageError(
            f"{path}: expected a readable file, got {error}; check the name and your rights"
        ) from None
    if not is_file:
        raise StorageError(f"{path}: expected a file, got a folder or device; name the file")
    # The size of a header, which comes before its brace, may begin with the same two bytes.
    foreign = start[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK")
    if foreign and start[8:] != b"{":
        raise StorageError(
            f"{path}: expected a file that megagp wrote, got a pickle or archive, which can "
            "execute code and is never loaded; save the model with megagp"
        )
    size = int.from_bytes(start[:8], "little")
    if len(start) < 8 or size > min(MAX_HEADER, facts.st_size - 8):
        raise StorageError(
            f"{path}: expected a safetensors file, got {facts.st_size} bytes that are "
            f"something else or cut short; {DAMAGED}"
        )


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(9)


def _header(path: Path, metadata: Mapping[str, str] | None) -> dict[str, Any]:
    document = (metadata or {}).get(KEY)
    if document is None or len(document) > MAX_JSON:
        got = "none" if document is None else f"{len(document)} characters"
        raise StorageError(
            f"{path}: expected a megagp header of at most {MAX_JSON} characters, got {got}; "
            "this safetensors file is not a megagp model"
        )
    try:
        header = json.loads(document, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path}: expected a JSON header, got {error}; {DAMAGED}") from None
    if not isinstance(header, dict) or header.get("format") != KEY:
        raise StorageError(f"{path}: expected a header of format {KEY!r}, got another; {DAMAGED}")
    version = header.get("version")
    if type(version) is int and version > VERSION:
        raise StorageError(
            f"{path}: expected format version {VERSION}, got {version}: made by a newer megagp; "
            "upgrade megagp to read it"
        )
    if type(version) is not int or version != VERSION:
        raise StorageError(f"{path}: expected format version {VERSION}, got another; {DAMAGED}")
    return header


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:20]}, which is not finite")
    return value


def _readable(path: Path, file: Any, name: str) -> Tensor:
    # Asked before the tensor is made: safetensors allows types and shapes that torch does not.
    kind, shape = file.get_slice(name).get_dtype(), file.get_slice(name).get_shape()
    if kind not in DTYPES or len(shape) > MAX_NDIM or max(shape, default=0) > MAX_SIZE:
        raise StorageError(
            f"{path}: {name}: expected at most {MAX_NDIM} dimensions of {', '.join(DTYPES)}, "
            f"got {len(shape)}, the largest {max(shape, default=0)}, of {kind}; {DAMAGED}"
        )
    tensor: Tensor = file.get_tensor(name)
    if not bool(tensor.isfinite().all()):
        raise StorageError(
            f"{path}: {name}: expected finite numbers, got NaN or infinity; {DAMAGED}"
        )
    return tensor


def _tree(
    kernel: Kernel, listed: dict[int, tuple[int, Hyperparameter]], depth: int
) -> dict[str, Any]:
    if depth == 0:
        raise StorageError(f"kernel: expected at most {MAX_DEPTH} levels of sums and products")
    name = type(kernel).__name__
    tree: dict[str, Any] = {"class": name, "custom": BUILT_IN.get(name) is not type(kernel)}
    if isinstance(kernel, Sum | Product):
        return {**tree, "parts": [_tree(part, listed, depth - 1) for part in kernel.parts]}
    own = {name: vars(kernel)[name] for name in kernel.declared()}
    places = {n: listed.setdefault(id(h), (len(listed), h))[0] for n, h in own.items()}
    dims = None if kernel.active_dims is None else list(kernel.active_dims)
    extra = {n: v for n, v in vars(kernel).items() if n not in own and n != "active_dims"}
    for attribute, value in extra.items():
        if not isinstance(value, Plain):
            raise StorageError(
                f"{name}.{attribute}: expected a number, text, bool or None, since a file holds "
                f"nothing else of a kernel, got {type(value).__name__}; "
                "make it a hyperparameter, a class attribute or a plain value"
            )
    return {**tree, "hyperparameters": places, "active_dims": dims, "attributes": extra}


def _number(h: Hyperparameter) -> dict[str, Any]:
    value = h.value.detach()
    if not bool(((value > 0) & value.isfinite()).all()):
        raise StorageError(f"{h.name}: expected positive finite values, got {value.tolist()}")
    # A copy owns its raw tensor even where the kernel was made by bind().
    return {"raw": h.__getstate__()["raw"].tolist(), "frozen": h.frozen}


def _grow(
    tree: Mapping[str, Any],
    numbers: Sequence[Mapping[str, Any]],
    loaded: dict[int, Hyperparameter],
    custom: Mapping[str, type[Kernel]],
    depth: int,
) -> Kernel:
    """The kernel of one node; `loaded` has the hyperparameters made so far by place."""
    if depth == 0:
        raise StorageError(f"kernel: expected at most {MAX_DEPTH} levels, got more; {DAMAGED}")
    kind = _class(require(tree, "class", str), require(tree, "custom", bool), custom)
    if issubclass(kind, Sum | Product):
        parts = require(tree, "parts", list)
        if not parts or not all(isinstance(part, dict) for part in parts):
            raise StorageError(f"parts: expected a list of kernels; {DAMAGED}")
        return kind(*[_grow(part, numbers, loaded, custom, depth - 1) for part in parts])
    # Not kind(...): a constructor takes what it likes, while this is all that a kernel holds.
    kernel = kind.__new__(kind)
    try:
        Kernel.__init__(kernel, active_dims=require(tree, "active_dims", list, type(None)))
    except (TypeError, ValueError) as error:
        raise StorageError(f"{kind.__name__}: {error}; {DAMAGED}") from None
    places = require(tree, "hyperparameters", dict)
    if places.keys() != kind.declared().keys():
        raise StorageError(
            f"{kind.__name__}: expected hyperparameters {', '.join(kind.declared())}, "
            f"got {', '.join(places)}; load it with the class that was saved"
        )
    for name, blank in kernel.hyperparameters().items():
        vars(kernel)[name] = _shared(blank, places[name], numbers, loaded)
    for name, value in require(tree, "attributes", dict).items():
        if not isinstance(value, Plain) or name in vars(kernel) or callable(getattr(kind, name, 0)):
            raise StorageError(f"{kind.__name__}.{name}: expected a plain attribute; {DAMAGED}")
        vars(kernel)[name] = value
    return kernel


def _class(name: str, is_custom: bool, custom: Mapping[str, type[Kernel]]) -> type[Kernel]:
    kind = (custom if is_custom else BUILT_IN).get(name)
    if kind is None and is_custom:
        raise StorageError(
            f"kernel: expected a class of megagp.kernels, got your own class {name!r}, which a "
            f'file can only name; pass it: load(path, kernels={{"{name}": {name}}})'
        )
    if kind is None:
        raise StorageError(
            f"kernel: expected one of {', '.join(BUILT_IN)}, got {name!r}; {DAMAGED}"
        )
    if not (inspect.isclass(kind) and issubclass(kind, Kernel)) or inspect.isabstract(kind):
        raise TypeError(f"kernels: expected a concrete subclass of Kernel for {name!r}, got {kind}")
    return kind


def _shared(
    blank: Hyperparameter,
    place: Any,
    numbers: Sequence[Mapping[str, Any]],
    loaded: dict[int, Hyperparameter],
) -> Hyperparameter:
    if type(place) is not int or not 0 <= place < len(numbers):
        raise StorageError(f"{blank.name}: expected a place in the list, got {place!r}; {DAMAGED}")
    if place not in loaded:
        raw = require(numbers[place], "raw", float, list)
        flat = raw if isinstance(raw, list) else [raw]
        if not flat or not all(isinstance(v, float) for v in flat):
            raise StorageError(f"{blank.name}: expected raw as numbers, got another; {DAMAGED}")
        blank.raw = torch.tensor(raw, dtype=torch.float64)
        blank.frozen = require(numbers[place], "frozen", bool)
        if not bool(((blank.value > 0) & blank.value.isfinite()).all()):
            raise StorageError(f"{blank.name}: expected exp(raw) finite and positive; {DAMAGED}")
        loaded[place] = blank
    found = loaded[place]
    if found.raw.ndim > blank.per_dimension:
        raise StorageError(f"{blank.name}: expected one number, got a list; {DAMAGED}")
    return found
