"""A sparse matrix by its rows, on CPU cores: the C++ core in native/sparse.h."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor


class SparseRows:
    """Row i has entries starts[i] .. starts[i + 1] of `columns` and `values`; rows x width.

    Products run on as many threads as torch uses, and sum in float64, always in the same order.
    """

    def __init__(
        self,
        starts: NDArray[np.int64],
        columns: NDArray[np.int32],
        values: NDArray[np.float64],
        width: int,
    ) -> None:
        self.starts, self.columns, self.values, self.width = starts, columns, values, width
        # Not before it is needed: engines run without the core, where they must.
        from megagp import _native

        self._rows = _native.SparseRows(starts, columns, values, width)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def some(self, rows: slice) -> SparseRows:
        """Consecutive rows, sharing memory."""
        return SparseRows(
            self.starts[rows.start : rows.stop + 1], self.columns, self.values, self.width
        )

    def transposed(self) -> SparseRows:
        first, last = self.starts[0], self.starts[-1]
        parts = self.values[first:last], self.columns[first:last], self.starts - first
        turned = csr_array(parts, shape=(len(self), self.width)).tocsc()
        starts = turned.indptr.astype(np.int64)
        return SparseRows(starts, turned.indices.astype(np.int32), turned.data, len(self))

    def times(self, X: Tensor) -> Tensor:
        """This matrix times X, width x t."""
        out = X.new_empty(len(self), X.shape[1])
        self._rows.times(X.contiguous().numpy(), out.numpy(), torch.get_num_threads())
        return out

    def solve(self, order: NDArray[np.int64], Z: Tensor) -> None:
        """Z becomes the inverse times Z.

        Row order[s] must have entries in columns order[0 .. s] alone, that on the diagonal last.
        """
        self._rows.solve(order, Z.numpy())
