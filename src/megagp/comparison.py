"""Exact or approximate? One table that answers it on the user's own data."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.model_selection import train_test_split

from megagp.estimators import GPRegressor, Regressor, SGPRegressor, SVGPRegressor
from megagp.memory import MemoryWatch
from megagp.scores import score

METHODS: dict[str, type[Regressor]] = {
    "exact": GPRegressor,
    "sgpr": SGPRegressor,
    "svgp": SVGPRegressor,
}


@dataclass(frozen=True)
class Row:
    """How one method did. rmse and nll in units of y; coverage: of the 95 % interval.

    memory_bytes: the most that fit and predict held beyond what was held before; None where the
    system does not say.
    """

    method: str
    rmse: float
    nll: float
    coverage: float
    fit_seconds: float
    predict_seconds: float
    memory_bytes: int | None


@dataclass(frozen=True)
class Comparison:
    """A row for each method, on the same split. print() shows a table."""

    rows: tuple[Row, ...]
    n_train: int
    n_test: int

    def as_dicts(self) -> list[dict[str, Any]]:
        """The rows as plain dicts, for pandas or JSON."""
        return [asdict(row) for row in self.rows]

    def __str__(self) -> str:
        head = ("method", "RMSE", "NLL", "in 95 %", "fit", "predict", "memory")
        body = [
            (
                row.method,
                f"{row.rmse:.4g}",
                f"{row.nll:.4g}",
                f"{100 * row.coverage:.1f} %",
                f"{row.fit_seconds:.1f} s",
                f"{row.predict_seconds:.2f} s",
                "?" if row.memory_bytes is None else f"{row.memory_bytes / 1e6:.0f} MB",
            )
            for row in self.rows
        ]
        widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
        lines = [
            "  ".join([line[0].ljust(widths[0])] + [c.rjust(w) for c, w in _pairs(line, widths)])
            for line in (head, *body)
        ]
        return "\n".join([f"{self.n_train} training points, {self.n_test} test points", *lines])


def compare(
    X: ArrayLike,
    y: ArrayLike,
    methods: Sequence[str] | Mapping[str, Regressor] = tuple(METHODS),
    *,
    test_fraction: float = 0.2,
    random_state: int = 0,
    verbose: int = 0,
) -> Comparison:
    """Fit each method to the same rows of X (n x d) and y, and score it on the others.

    methods: names among "exact", "sgpr" and "svgp", for their defaults; or your own regressors by
    the names that the table shall show.
    """
    models = _models(methods, random_state, verbose)
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction: expected a number between 0 and 1, got {test_fraction!r}")
    X_train, X_test, y_train, y_test = train_test_split(
        np.asarray(X),
        np.asarray(y, dtype=np.float64),
        test_size=test_fraction,
        random_state=random_state,
    )
    rows = tuple(
        _measure(name, model, X_train, y_train, X_test, y_test) for name, model in models.items()
    )
    return Comparison(rows, len(X_train), len(X_test))


def _models(
    methods: Sequence[str] | Mapping[str, Regressor], random_state: int, verbose: int
) -> dict[str, Any]:
    if isinstance(methods, Mapping):
        found = dict(methods)
    else:
        unknown = [name for name in methods if name not in METHODS]
        if unknown or isinstance(methods, str):
            raise ValueError(
                f"methods: expected a list of names among {', '.join(METHODS)}, or regressors by "
                f"name, got {methods!r}"
            )
        found = {
            name: METHODS[name](random_state=random_state, verbose=verbose) for name in methods
        }
    if not found:
        raise ValueError("methods: expected at least one, got none")
    return found


def _measure(name: str, model: Any, X: Any, y: Any, X_test: Any, y_test: Any) -> Row:
    with MemoryWatch() as memory:
        begin = time.perf_counter()
        model.fit(X, y)
        fitted = time.perf_counter()
        mean, std = model.predict(X_test, return_std=True)
        predicted = time.perf_counter()
    found = score(y_test, mean, std)
    return Row(name, *found, fitted - begin, predicted - fitted, memory.most)


def _pairs(line: Sequence[str], widths: Sequence[int]) -> list[tuple[str, int]]:
    return list(zip(line[1:], widths[1:], strict=True))
