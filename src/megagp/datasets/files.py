"""The files of a set: where they lie, whether they are what they should be, and what is in them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow
import pyarrow.csv

from megagp.datasets.collection import DATASETS, SHA256
from megagp.datasets.download import address, download_part
from megagp.datasets.splits import Array

PathLike: TypeAlias = str | os.PathLike[str]


def load(
    name: str, folder: PathLike | None = None, *, download: bool = True
) -> tuple[Array, Array]:
    """X (n x d) and y (n) of a set by name, in raw units and the order of its file.

    folder, download: as in `locate`. Files whose sha256 is known are checked against it, all
    against the set's size.
    """
    files = locate(name, folder, download=download)
    X, y = _read_npz(files[0]) if files[0].suffix == ".npz" else _read_csv(files)
    facts = DATASETS[name]
    if X.shape != (facts.n, facts.d) or y.shape != (facts.n,):
        raise ValueError(
            f"{files[0]}: expected {facts.n} x {facts.d} and {facts.n} targets, got {X.shape} and "
            f"{y.shape}; the file is another one or incomplete: remove it and fetch it again"
        )
    return X, y


def locate(name: str, folder: PathLike | None = None, *, download: bool = True) -> list[Path]:
    """The files of a set, fetched if need be.

    folder: looked into first, for <name>/data.csv.gz (no header, the target last) or
        <name>/data.npz (arrays X and y); the environment variable MEGAGP_DATA, if None.
    download: take what the folder lacks from the user's cache, or else from the collection
        uci_datasets on GitHub into that cache.
    """
    if name not in DATASETS:
        raise ValueError(f"name: expected one of {', '.join(DATASETS)}, got {name!r}")
    local = _folder(folder)
    files = [] if local is None else _local(local / name)
    if files:
        for file in files:
            _check_sum(file)
        return files
    facts = DATASETS[name]
    if not (download and facts.upstream):
        raise FileNotFoundError(_absent(name, local))
    return [download_part(name, part) for part in facts.parts]


def _folder(folder: PathLike | None) -> Path | None:
    given = folder if folder is not None else os.environ.get("MEGAGP_DATA")
    if not given:
        return None
    if not Path(given).is_dir():
        what = "MEGAGP_DATA" if folder is None else "folder"
        raise FileNotFoundError(
            f"{what}: expected the folder of the data sets, got {given}, which is none; "
            "create it or name another"
        )
    return Path(given)


def _local(home: Path) -> list[Path]:
    """The files of a set in a folder of its own; none if one is missing."""
    if (home / "data.npz").is_file():
        return [home / "data.npz"]
    files = [home / part for part in DATASETS[home.name].parts]
    return files if all(file.is_file() for file in files) else []


def _absent(name: str, local: Path | None) -> str:
    facts = DATASETS[name]
    home = f"<folder>/{name}" if local is None else str(local / name)
    files = " and ".join(f"{home}/{part}" for part in facts.parts)
    rest = "" if local is not None else ", and set MEGAGP_DATA=<folder>"
    source = (
        f"fetch {address(name, facts.parts[0])} yourself or pass download=True"
        if facts.upstream
        else "it has no download"
    )
    return (
        f"{name}: expected {files} (CSV without header, target last) or {home}/data.npz (arrays X, "
        f"{facts.n} x {facts.d}, and y), got neither; put one there{rest}; {source}"
    )


def _check_sum(file: Path) -> None:
    known = SHA256.get(f"{file.parent.name}/{file.name}")
    if known is None:
        return
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if known != found:
        raise ValueError(
            f"{file}: expected sha256 {known}, got {found}; remove it and fetch it again"
        )


def _read_npz(file: Path) -> tuple[Array, Array]:
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        if not {"X", "y"} <= set(arrays):
            raise ValueError(f"{file}: expected arrays X and y, got {', '.join(arrays)}")
        return arrays["X"].astype(np.float64), arrays["y"].astype(np.float64)


def _read_csv(files: list[Path]) -> tuple[Array, Array]:
    options = pyarrow.csv.ReadOptions(autogenerate_column_names=True)
    try:
        tables = [pyarrow.csv.read_csv(file, read_options=options) for file in files]
        columns = pyarrow.concat_tables(tables, promote_options="permissive").columns
        data = np.stack([column.to_numpy().astype(np.float64) for column in columns], axis=1)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise ValueError(
            f"{files[0]}: expected numbers, comma separated, no header, got {error}; "
            "remove it and fetch it again"
        ) from None
    return np.ascontiguousarray(data[:, :-1]), data[:, -1].copy()
