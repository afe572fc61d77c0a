"""The data of a run: a set by name, a table, or a robot arm."""

from __future__ import annotations

from pathlib import Path

from megagp import datasets, tables
from megagp.datasets import DATASETS
from megagp.datasets.splits import Array

ARM, ARM_POINTS = "robot_arm", 10_000
TARGET = "y"


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
