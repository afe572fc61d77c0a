"""Data to try megagp on: a robot arm of any size, and the sets that papers on large GPs report."""

from __future__ import annotations

import hashlib
import http.client
import os
import secrets
import urllib.request
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow
import pyarrow.csv
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[np.float64]
PathLike: TypeAlias = str | os.PathLike[str]
Seed: TypeAlias = int | np.random.Generator

UPSTREAM = "https://raw.githubusercontent.com/treforevans/uci_datasets/master/uci_datasets"
TIMEOUT = 60  # seconds without a byte
GZIP = b"\x1f\x8b"
TARGET_POINT = np.array([1.0, 1.0, 1.0])


class Facts(NamedTuple):
    """The size of a set, the names of its CSV parts, and whether it can be downloaded."""

    n: int
    d: int
    parts: tuple[str, ...] = ("data.csv.gz",)
    upstream: bool = True


DATASETS = {
    "pol": Facts(15_000, 26),
    "elevators": Facts(16_599, 18),
    "bike": Facts(17_379, 17),
    "kin40k": Facts(40_000, 8),
    "protein": Facts(45_730, 9),
    "keggdirected": Facts(48_827, 20),
    "keggundirected": Facts(63_608, 27),
    "slice": Facts(53_500, 385),
    "3droad": Facts(434_874, 3),
    "song": Facts(515_345, 90, ("data.csv.gz", "data1.csv.gz")),
    "buzz": Facts(583_250, 77),
    "houseelectric": Facts(2_049_280, 11),
    # Elevation by longitude and latitude, and two plants' sensors with lags: sizes like those of
    # 3droad, song and slice, under names of their own.
    "gebco_kg_2m": Facts(2_000_000, 2, upstream=False),
    "condat_lags": Facts(515_345, 90, upstream=False),
    "fhw_lags": Facts(53_500, 384, upstream=False),
}

SHA256 = {
    "pol/data.csv.gz": "1c16126352954571e78f52d5a9d1b947a38655885d7cadd9407a4c9615fe4e04",
    "elevators/data.csv.gz": "e39bc18a80ec3611e4fd76d0f86ee377e96ba21b568b9997576d538dafe56b7b",
    "bike/data.csv.gz": "411f76ae426c0e348a2629dcf6b3b29102c7db465eae780a3454c39db1dfac4f",
    "kin40k/data.csv.gz": "9bee7f2a9f39aa61a015f239378368601fb3978c5bb9a96433e88a55d40883ba",
    "protein/data.csv.gz": "f709d0107c3ee90ab019b9e5d77fc2ae182158958cb70b1903236a51334fd01b",
    "keggdirected/data.csv.gz": "51b7bb56e3f3eae36273cdd5a549c042bdf0ec10948a6f8e6b01a1d6912212cd",
    "keggundirected/data.csv.gz": (
        "117419270e50f581df18bf996ffc8b6bf1bb76c9f3640331ac9d6e64cff63d4e"
    ),
    "houseelectric/data.npz": "0a33982e685ebd3f8ec9485f0dca6fe849e1dd69e2d92d39adcb08a31f4e5a4f",
    "gebco_kg_2m/data.npz": "43e5f923fa6bbb2486ca85f56a9dd78fa85fbd9dfb61f2317b8ce40132df006f",
    "condat_lags/data.npz": "03189791e3be5a90b9739fb484b3573f6522c4ded446e92e68dfe7c9b7abc5a8",
    "fhw_lags/data.npz": "9464b02ffd91ca003dcca2fdbcf932babed44169582a9caeee620d786dc7a357",
}


class Split(NamedTuple):
    """Training, validation and test points."""

    X_train: Array
    y_train: Array
    X_val: Array
    y_val: Array
    X_test: Array
    y_test: Array


def robot_arm(
    n: int, joints: int = 4, noise_std: float = 0.05, random_state: Seed = 0
) -> tuple[Array, Array]:
    """How far the tip of a jointed arm is from a fixed point, given the joint angles.

    tip = R_1 (l + R_2 (l + ... R_J l)),  l = (1/J, 0, 0),  J = joints
    y   = (|tip - (1, 1, 1)| - a) / b + noise_std * e,  e ~ N(0, 1)

    R_i turns by the angle x_i: about the vertical axis for the first joint, the third and so on,
    about a horizontal one for the others. The point is out of reach, so y is smooth. a and b
    are the mean and standard deviation over fixed poses, the same for every n.
    Returns X, n x joints, uniform on [-pi/2, pi/2], and y, n.
    """
    if n < 1 or joints < 1 or not noise_std >= 0:
        raise ValueError(
            "robot_arm: expected n >= 1, joints >= 1 and noise_std >= 0, "
            f"got {n}, {joints} and {noise_std}"
        )
    rng = np.random.default_rng(random_state)
    X = rng.uniform(-np.pi / 2, np.pi / 2, size=(n, joints))
    poses = np.random.default_rng(0).uniform(-np.pi / 2, np.pi / 2, size=(10_000, joints))
    usual = _distance(poses)
    y = (_distance(X) - usual.mean()) / usual.std()
    return X, y + noise_std * rng.standard_normal(n)


def load(
    name: str, folder: PathLike | None = None, *, download: bool = False
) -> tuple[Array, Array]:
    """X (n x d) and y (n) of a set by name, in raw units and the order of its file.

    folder: holds <name>/data.csv.gz (no header, the target last) or <name>/data.npz (arrays
        X and y); the environment variable MEGAGP_DATA, if None. Files whose sha256 is known
        are checked against it.
    download: fetch a set that the folder lacks from the collection uci_datasets on GitHub.
    """
    if name not in DATASETS:
        raise ValueError(f"name: expected one of {', '.join(DATASETS)}, got {name!r}")
    home = _folder(folder) / name
    facts = DATASETS[name]
    if download and facts.upstream and not (home / "data.npz").is_file():
        for part in facts.parts:
            if not (home / part).is_file():
                _download(home, part)
    files = _files(home)
    for file in files:
        _check_sum(file, file.read_bytes())
    X, y = _read_npz(files[0]) if files[0].suffix == ".npz" else _read_csv(files)
    if X.shape != (facts.n, facts.d) or y.shape != (facts.n,):
        raise ValueError(
            f"{home}: expected {facts.n} x {facts.d} and {facts.n} targets, got {X.shape} and "
            f"{y.shape}; the file is another one or incomplete: fetch it again"
        )
    return X, y


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


def _distance(X: Array) -> Array:
    """From the tip of the arm to the target point; from the last joint inwards, O(n) memory."""
    joints = X.shape[1]
    x, y, z = np.zeros((3, len(X)))
    for joint in reversed(range(joints)):
        c, s = np.cos(X[:, joint]), np.sin(X[:, joint])
        x = x + 1 / joints
        if joint % 2 == 0:
            x, y = c * x - s * y, s * x + c * y
        else:
            x, z = c * x + s * z, c * z - s * x
    distance: Array = np.linalg.norm(np.stack([x, y, z], axis=1) - TARGET_POINT, axis=1)
    return distance


def _folder(folder: PathLike | None) -> Path:
    found = folder if folder is not None else os.environ.get("MEGAGP_DATA")
    if not found:
        raise ValueError(
            "folder: expected the folder of the data sets, got none; "
            "pass it or set the environment variable MEGAGP_DATA"
        )
    return Path(found)


def _files(home: Path) -> list[Path]:
    facts = DATASETS[home.name]
    if (home / "data.npz").is_file():
        return [home / "data.npz"]
    files = [home / part for part in facts.parts]
    absent = [str(file) for file in files if not file.is_file()]
    if absent:
        remedy = (
            f"pass download=True, or fetch {UPSTREAM}/{home.name}/{facts.parts[0]} yourself"
            if facts.upstream
            else "it has no download"
        )
        raise FileNotFoundError(
            f"{home.name}: expected {' and '.join(absent)} (CSV without header, target last) or "
            f"{home / 'data.npz'} (arrays X, {facts.n} x {facts.d}, and y), got neither; {remedy}"
        )
    return files


def _check_sum(file: Path, content: bytes) -> None:
    known = SHA256.get(f"{file.parent.name}/{file.name}")
    found = hashlib.sha256(content).hexdigest()
    if known not in (None, found):
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
            f"{files[0]}: expected numbers, comma separated, no header, got {error}; fetch it again"
        ) from None
    return np.ascontiguousarray(data[:, :-1]), data[:, -1].copy()


def _download(home: Path, part: str) -> None:
    """One file of the upstream collection, checked before it gets its name."""
    url = f"{UPSTREAM}/{home.name}/{part}"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as stream:
            content = stream.read()
    except (OSError, http.client.HTTPException) as error:
        raise OSError(
            f"{url}: expected a download, got {error}; fetch it yourself and save as {home / part}"
        ) from None
    _check_sum(home / part, content)
    if not content.startswith(GZIP):
        raise ValueError(f"{url}: expected a gzip file, got {content[:40]!r}")
    home.mkdir(parents=True, exist_ok=True)
    temporary = home / f".{secrets.token_hex(8)}.tmp"
    try:
        temporary.write_bytes(content)
        temporary.replace(home / part)
    finally:
        temporary.unlink(missing_ok=True)
