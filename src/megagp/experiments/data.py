"""The data of a run: a set by name, a table, or a robot arm; split by seed and whitened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from megagp import datasets, tables
from megagp.datasets import DATASETS, Split
from megagp.datasets.splits import Array
from megagp.whitening import Whitening

ARM, ARM_POINTS = "robot_arm", 10_000
TARGET = "y"
# Test points of a run on a subset, at most: they tell an RMSE to half a percent.
SUBSET_TEST = 20_000


def load(dataset: str) -> tuple[Array, Array]:
    """X and y of "pol" and other names, "houses.csv:price", or "robot_arm:5000"."""
    if dataset in DATASETS:
        return datasets.load(dataset)
    if _is_arm(dataset):
        return datasets.robot_arm(_arm_points(dataset), joints=6)
    path, target = _table(dataset)
    X, y, _ = tables.read_target(path, target)
    return X, y


def require(dataset: str) -> None:
    """Raise OSError or ValueError, with what to do, if the set can't be had; fetch it if it can."""
    if dataset in DATASETS:
        datasets.locate(dataset)
    elif _is_arm(dataset):
        _arm_points(dataset)
    else:
        path, target = _table(dataset)
        names = tables.column_names(path)
        if target not in names:
            raise ValueError(
                f"{path}: expected the target column {target!r}, got columns {', '.join(names)}; "
                f"name one of them: {path}:{names[-1]}"
            )


def size(dataset: str) -> int:
    """Points in the set."""
    if dataset in DATASETS:
        return DATASETS[dataset].n
    return _arm_points(dataset) if _is_arm(dataset) else len(load(dataset)[1])


def prepare(dataset: str, seed: int, subset: int | None) -> Split:
    """64 / 16 / 20 %, in units of the training part's standard deviations from its means.

    subset: training points to keep of the 64 %; of the test points, SUBSET_TEST are then enough.
    """
    whole = datasets.split(*load(dataset), random_state=seed)
    if subset is not None and subset < len(whole.X_train):
        # The split has shuffled them.
        whole = whole._replace(
            X_train=whole.X_train[:subset],
            y_train=whole.y_train[:subset],
            X_test=whole.X_test[:SUBSET_TEST],
            y_test=whole.y_test[:SUBSET_TEST],
        )
    parts = [torch.from_numpy(np.ascontiguousarray(part, dtype=np.float64)) for part in whole]
    of_X, of_y = Whitening.of(parts[0]), Whitening.of(parts[1][:, None])
    white = [
        (of_X.apply(part) if part.ndim == 2 else of_y.apply(part[:, None])[:, 0]).numpy()
        for part in parts
    ]
    return Split(*white)


def _is_arm(dataset: str) -> bool:
    return dataset.partition(":")[0] == ARM


def _arm_points(dataset: str) -> int:
    _, _, points = dataset.partition(":")
    if not points:
        return ARM_POINTS
    if not points.isdecimal() or int(points) < 10:
        raise ValueError(f"{dataset}: expected {ARM}:<points>, 10 or more, got {points!r}")
    return int(points)


def _table(dataset: str) -> tuple[Path, str]:
    """File and target of "houses.csv:price"; the target is y if none is named."""
    if Path(dataset).is_file():
        return Path(dataset), TARGET
    path, colon, target = dataset.rpartition(":")
    if colon and Path(path).is_file():
        return Path(path), target
    raise ValueError(
        f"{dataset}: expected one of {', '.join(DATASETS)}, {ARM}:<points>, or a table "
        "<file>:<target column>, got none of them; check the name"
    )
