"""Training, validation and test points of a set, by seed."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[np.float64]
Seed: TypeAlias = int | np.random.Generator


class Split(NamedTuple):
    """Training, validation and test points."""

    X_train: Array
    y_train: Array
    X_val: Array
    y_val: Array
    X_test: Array
    y_test: Array


def split(X: ArrayLike, y: ArrayLike, random_state: Seed = 0) -> Split:
    """A random 64 / 16 / 20 % into training, validation and test points.

    Four fifths are kept from the test set, and four fifths of these are trained on, rounded
    down: the sizes that the paper's table lists.
    """
    X, y = np.asarray(X), np.asarray(y)
    n = len(X)
    if n < 3 or len(y) != n:
        raise ValueError(
            f"split: expected at least 3 rows and as many targets, got {n} and {len(y)}"
        )
    order = np.random.default_rng(random_state).permutation(n)
    kept = 4 * n // 5
    rows = np.split(order, [4 * kept // 5, kept])
    return Split(*(part for i in rows for part in (X[i], y[i])))
