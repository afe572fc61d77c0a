"""What a caller may pass as points, right-hand sides, indices and dtype, and what comes of it.

Every error names the argument, what was expected, what came, and the remedy.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

Matrix: TypeAlias = ArrayLike | Tensor
Index: TypeAlias = slice | ArrayLike | Tensor | None

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def as_points(X: Matrix, name: str) -> Tensor:
    """X as a finite float64 matrix with at least one row and one column."""
    tensor = as_float64(X, name)
    if tensor.ndim != 2:
        hint = "; reshape(-1, 1) makes one column of a vector" if tensor.ndim == 1 else ""
        raise ValueError(
            f"{name}: expected a matrix of points (n x d), got shape {tuple(tensor.shape)}{hint}"
        )
    n, d = tensor.shape
    if n == 0 or d == 0:
        raise ValueError(
            f"{name}: expected at least one row and one column, got {n} x {d}; "
            "check the selection that made it"
        )
    check_finite(tensor, name)
    return tensor


def as_float64(X: Matrix, name: str) -> Tensor:
    if not isinstance(X, Tensor):
        array = np.asarray(X)
        if array.dtype.kind not in "fiub":
            raise TypeError(
                f"{name}: expected real numbers, got an array of {array.dtype}; "
                "convert it with astype(float)"
            )
        # A copy where torch would otherwise share memory it may not write, or strides it can't.
        return torch.from_numpy(np.array(array, dtype=np.float64, order="C", copy=True))
    if X.device.type == "meta":
        raise ValueError(f"{name}: expected numbers, got a tensor on meta; load the data first")
    if X.is_complex() or X.layout != torch.strided or X.is_quantized:
        raise TypeError(
            f"{name}: expected a dense tensor of real numbers, got {X.dtype}, {X.layout}; "
            "convert it first"
        )
    return X.to(torch.float64)


def check_finite(X: Tensor, name: str) -> None:
    bad = ~X.detach().isfinite()
    if bad.any():
        where = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"{name}: expected finite numbers, got {X[where].item()} at {list(where)} "
            f"({int(bad.sum())} such entries in all); drop or impute those rows"
        )


def check_match(X: Tensor, Z: Tensor) -> None:
    if Z.shape[1] != X.shape[1]:
        raise ValueError(
            f"Z: expected {X.shape[1]} columns like X, got {Z.shape[1]}; "
            "both need the same features in the same order"
        )
    if Z.device != X.device:
        raise ValueError(
            f"Z: expected a tensor on {X.device} like X, got one on {Z.device}; move it with .to()"
        )


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if found is None or found not in DTYPES.values():
        raise ValueError(f"dtype: expected 'float32' or 'float64', got {dtype!r}")
    return found


def as_index(index: Index, size: int, name: str, device: torch.device) -> Tensor:
    every = torch.arange(size, device=device)
    if index is None:
        return every
    if isinstance(index, slice):
        chosen = range(*index.indices(size))
        stop = chosen.start + len(chosen) * chosen.step
        return torch.arange(chosen.start, stop, chosen.step, device=device)
    if not isinstance(index, Tensor):
        index = np.array(index)
        if index.dtype.kind not in "fiub":
            raise TypeError(f"{name}: expected integers, a mask or a slice, got {index.dtype}")
        index = torch.from_numpy(index)
    found = index.to(device).reshape(-1)
    if found.dtype == torch.bool:
        if len(found) != size:
            raise IndexError(f"{name}: expected a mask of {size}, got {len(found)}")
        return every[found]
    if found.numel() == 0:
        return every[:0]
    if found.is_floating_point() or found.is_complex():
        raise TypeError(f"{name}: expected integers, a mask or a slice, got {found.dtype}")
    found = found.long()
    if int(found.min()) < -size or int(found.max()) >= size:
        raise IndexError(
            f"{name}: expected indices from {-size} to {size - 1}, got "
            f"{int(found.min())} to {int(found.max())}"
        )
    return every[found]
