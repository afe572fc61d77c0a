"""Which rows of matrices are equal, to the last bit."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Bits = NDArray[np.uint64]
Index = NDArray[np.int64]


def distinct(X: Tensor) -> tuple[Tensor, Tensor]:
    """The first of each kind of row, in their order, and which of these each row is."""
    bits = _bits(X)
    _, first, place = np.unique(_keys(bits), return_index=True, return_inverse=True)
    if not np.array_equal(bits[first[place]], bits):  # different rows with one key
        _, first, place = np.unique(bits, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return torch.from_numpy(first[order]), torch.from_numpy(number[place.reshape(-1)])


class EqualRows:
    """The rows of X, n x d, to look others up among; O(n) memory beside X."""

    def __init__(self, X: Tensor) -> None:
        self._X = X
        keys = _keys(_bits(X))
        self._order: Index = np.argsort(keys, kind="stable")
        self._keys: Bits = keys[self._order]

    def find(self, X_new: Tensor) -> Tensor:
        """The first row of X that each of m rows equals, -1 where none does. O(m (d + log n))."""
        wanted = _bits(X_new)
        keys = _keys(wanted)
        found: Index = np.full(len(wanted), -1)
        at, left = np.searchsorted(self._keys, keys), np.arange(len(wanted))
        # Different rows may have one key: candidates are looked at one after the other.
        while len(left):
            left = left[at[left] < len(self._keys)]
            left = left[self._keys[at[left]] == keys[left]]
            candidates = self._order[at[left]]
            same = (_bits(self._X[torch.from_numpy(candidates)]) == wanted[left]).all(axis=1)
            found[left[same]] = candidates[same]
            left = left[~same]
            at[left] += 1
        return torch.from_numpy(found)


def _bits(X: Tensor) -> Bits:
    return np.ascontiguousarray(X.numpy() + 0.0).view(np.uint64)  # + 0.0: -0.0 is 0.0


def _keys(bits: Bits) -> Bits:
    """A number for each row, which equal rows share."""
    keys = np.zeros(len(bits), dtype=np.uint64)
    for column, odd in zip(bits.T, _odd_numbers(bits.shape[1]), strict=True):
        # Multiplication modulo 2⁶⁴ moves bits up only: the upper half is folded in each time.
        keys = (keys ^ column) * odd
        keys ^= keys >> np.uint64(32)
    return keys


def _odd_numbers(count: int) -> Bits:
    """The same ones every time."""
    odd: Bits = np.random.default_rng(0).integers(2**63, size=count, dtype=np.uint64)
    return 2 * odd + 1
