"""Tables of numbers in files: .csv, .csv.gz, .parquet and .npz, read and written in chunks."""

from __future__ import annotations

import secrets
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray
from typing_extensions import Self

Array: TypeAlias = NDArray[np.float64]

FORMATS = (".csv", ".csv.gz", ".parquet", ".npz")
ROWS = 65_536  # of a chunk
BLOCK = 2 * 2**20  # bytes of a chunk of CSV; pyarrow reads some thirty ahead
MENDED = "drop the column or turn it into numbers"


class TableError(ValueError):
    """A table that can't be used as it is."""


def format_of(path: Path) -> str:
    """Which of FORMATS the name ends in."""
    for ending in FORMATS:
        if path.name.lower().endswith(ending):
            return ending
    raise TableError(f"{path}: expected a name that ends in {', '.join(FORMATS)}; rename it")


def column_names(path: Path) -> list[str]:
    """The columns; those of an .npz are x0, x1, ... and, if it has y, y."""
    ending = format_of(path)
    if not path.is_file():
        raise TableError(f"{path}: expected a file, got none; check the name")
    names: list[str] = _guarded(path, NAMES[ending])
    _check_names(path, names)
    return names


def chunks(path: Path, names: Sequence[str]) -> Iterator[Array]:
    """The named columns, rows x columns, a chunk at a time; every number finite.

    Memory for a chunk, but for .npz, which is read whole.
    """
    first = 1
    for chunk in _raw_chunks(path, names):
        _check_complete(path, names, chunk, first)
        first += len(chunk)
        yield chunk


def read(path: Path, names: Sequence[str]) -> Array:
    """The named columns as one matrix, every number finite."""
    table = np.concatenate(list(_raw_chunks(path, names)))
    _check_complete(path, names, table, 1)
    return table


def read_target(path: Path, target: str) -> tuple[Array, Array, list[str]]:
    """Features, target, and the features' names."""
    names = column_names(path)
    if target not in names:
        raise TableError(
            f"{path}: expected the target column {target!r}, got columns {', '.join(names)}; "
            "name one of them with --target"
        )
    features = [name for name in names if name != target]
    if not features:
        raise TableError(f"{path}: expected features beside {target!r}, got no other column")
    table = read(path, [*features, target])
    return table[:, :-1], table[:, -1], features


class Writer:
    """Writes columns chunk by chunk; the file gets its name when all went well.

        with Writer(path, ["mean", "std"]) as out:
            out.write(mean, std)

    Memory for a chunk, but for .npz, which is collected first.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.path, self.names = path, list(names)
        self.ending = format_of(path)
        if path.is_dir() or not path.parent.is_dir():
            raise TableError(f"{path}: expected a file name in a folder that exists; create it")
        self._temporary = path.with_name(f".{secrets.token_hex(8)}{self.ending}")
        self._schema = pyarrow.schema([(name, pyarrow.float64()) for name in self.names])
        self._kept: list[tuple[Array, ...]] = []
        self._closing: list[Callable[[], Any]] = []

    def __enter__(self) -> Self:
        if self.ending == ".parquet":
            self._table = pyarrow.parquet.ParquetWriter(self._temporary, self._schema)
            self._closing = [self._table.close]
        elif self.ending != ".npz":
            # The compression follows from the name. The header by hand: pyarrow would quote it.
            stream = pyarrow.output_stream(str(self._temporary), compression="detect")
            stream.write((",".join(self.names) + "\n").encode())
            options = pyarrow.csv.WriteOptions(include_header=False)
            self._table = pyarrow.csv.CSVWriter(stream, self._schema, write_options=options)
            self._closing = [self._table.close, stream.close]
        return self

    def write(self, *columns: Array) -> None:
        if self.ending == ".npz":
            self._kept.append(columns)
        else:
            self._table.write(pyarrow.record_batch(list(columns), schema=self._schema))

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            for close in self._closing:
                close()
            if kind is None and self.ending == ".npz":
                whole = [np.concatenate(column) for column in zip(*self._kept, strict=True)]
                named: dict[str, Any] = dict(zip(self.names, whole, strict=True))
                np.savez(self._temporary, **named)
            if kind is None:
                self._temporary.replace(self.path)
        finally:
            self._temporary.unlink(missing_ok=True)


def _raw_chunks(path: Path, names: Sequence[str]) -> Iterator[Array]:
    rows, found = 0, iter(CHUNKS[format_of(path)](path, list(names)))
    while (chunk := _guarded(path, lambda _: next(found, None))) is not None:
        rows += len(chunk)
        yield chunk
    if rows == 0:
        raise TableError(f"{path}: expected at least one row of numbers, got none")


def _guarded(path: Path, step: Callable[[Path], Any]) -> Any:
    """step(path), where what the libraries say of a file becomes a TableError."""
    try:
        return step(path)
    except TableError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise TableError(
            f"{path}: expected {WANTED[format_of(path)]}, got: {str(error).strip()}"
        ) from None


def _check_names(path: Path, names: list[str]) -> None:
    if all(_is_number(name) for name in names):
        raise TableError(
            f"{path}: expected column names in the first line, got numbers ({', '.join(names[:3])}"
            f"{', ...' if len(names) > 3 else ''}); put a line of names on top"
        )
    if len(names) == 1 and (";" in names[0] or "\t" in names[0]):
        raise TableError(f"{path}: expected commas between columns, got {names[0]!r}; convert it")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TableError(f"{path}: expected distinct column names, got {', '.join(twice)} twice")


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _check_complete(path: Path, names: Sequence[str], table: Array, first_row: int) -> None:
    for name, column in zip(names, table.T, strict=True):
        missing = ~np.isfinite(column)
        if missing.any():
            row = first_row + int(missing.argmax())
            raise TableError(
                f"{path}: column {name!r}: expected finite numbers, got {int(missing.sum())} "
                f"missing or infinite of {len(column)}, the first in row {row}; "
                "drop or fill those rows"
            )


def _csv_names(path: Path) -> list[str]:
    with pyarrow.csv.open_csv(path) as reader:
        return list(reader.schema.names)


def _csv_chunks(path: Path, names: list[str]) -> Iterator[Array]:
    try:
        for batch in _csv_batches(path, names, pyarrow.float64()):
            yield _as_matrix(batch.columns)
    except pyarrow.ArrowInvalid:
        _name_bad_value(path, names)
        raise


def _csv_batches(path: Path, names: list[str], kind: Any) -> Iterator[Any]:
    # Types are given, not inferred: that would look at the first block alone.
    convert = pyarrow.csv.ConvertOptions(
        include_columns=names, column_types=dict.fromkeys(names, kind), strings_can_be_null=True
    )
    options = pyarrow.csv.ReadOptions(block_size=BLOCK)
    with pyarrow.csv.open_csv(path, read_options=options, convert_options=convert) as reader:
        yield from reader


def _name_bad_value(path: Path, names: list[str]) -> None:
    """Read once more, as text, for the first entry that is no number."""
    row = 1
    for batch in _csv_batches(path, names, pyarrow.string()):
        for name, column in zip(names, batch.columns, strict=True):
            at = _first_bad(column)
            if at is not None:
                raise TableError(
                    f"{path}: column {name!r}: expected numbers, got {column[at].as_py()!r} in row "
                    f"{row + at}; {MENDED}"
                )
        row += len(batch)


def _first_bad(column: Any) -> int | None:
    # What is a number is for arrow to say, which read the table: Python's float takes 1_000 too.
    # Spaces and tabs around a number are trimmed by arrow's reader, but not by its cast.
    trimmed = pyarrow.compute.utf8_trim(column, " \t")
    if _casts(trimmed):
        return None
    return next((i for i, value in enumerate(trimmed) if not _casts(value)), None)


def _casts(values: Any) -> bool:
    try:
        values.cast(pyarrow.float64())
    except pyarrow.ArrowInvalid:
        return False
    return True


def _parquet_names(path: Path) -> list[str]:
    with pyarrow.parquet.ParquetFile(path) as file:
        return list(file.schema_arrow.names)


def _parquet_chunks(path: Path, names: list[str]) -> Iterator[Array]:
    types = pyarrow.types
    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(ROWS, columns=names):
            columns = [batch.column(name) for name in names]
            for name, column in zip(names, columns, strict=True):
                tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
                if not any(test(column.type) for test in tests):
                    got = next((v for v in column.to_pylist() if v is not None), None)
                    raise TableError(
                        f"{path}: column {name!r}: expected numbers, got {column.type} "
                        f"such as {got!r}; {MENDED}"
                    )
            yield _as_matrix([column.cast(pyarrow.float64()) for column in columns])


def _as_matrix(columns: list[Any]) -> Array:
    return np.stack([column.to_numpy(zero_copy_only=False) for column in columns], axis=1)


def _npz_names(path: Path) -> list[str]:
    X, y = _arrays(path)
    return [f"x{i}" for i in range(X.shape[1])] + ([] if y is None else ["y"])


def _npz_chunks(path: Path, names: list[str]) -> Iterator[Array]:
    X, y = _arrays(path)
    columns = {f"x{i}": X[:, i] for i in range(X.shape[1])} | ({} if y is None else {"y": y})
    for start in range(0, len(X), ROWS):
        yield np.stack([columns[name][start : start + ROWS] for name in names], axis=1)


def _arrays(path: Path) -> tuple[Array, Array | None]:
    if not zipfile.is_zipfile(path):
        raise TableError(f"{path}: expected {WANTED['.npz']}, got another kind of file")
    found = _loaded(path)
    if "X" not in found or any(array.dtype.kind not in "fiub" for array in found.values()):
        raise TableError(f"{path}: expected an array X (and y) of numbers, got another; save them")
    X, y = found["X"], found.get("y")
    if X.ndim != 2 or 0 in X.shape or (y is not None and y.shape != (len(X),)):
        shape = "no y" if y is None else f"y of {y.shape}"
        raise TableError(f"{path}: expected X of n x d and y of n, got X of {X.shape}, {shape}")
    return X.astype(np.float64), None if y is None else y.astype(np.float64)


def _loaded(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays X and y, as far as the file has them."""
    try:
        # Opened here, because numpy leaves a damaged file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in ("X", "y") if name in arrays}
    # A damaged file makes zipfile, zlib and numpy's parser of headers raise errors of any kind.
    except Exception as error:
        raise TableError(
            f"{path}: expected {WANTED['.npz']}, got one that can't be read "
            f"({type(error).__name__}: {' '.join(str(error).split())}); "
            "if it is damaged, save it again"
        ) from None


WANTED = {
    ".csv": "a table in UTF-8 with commas and a line of names",
    ".csv.gz": "a gzipped table in UTF-8 with commas and a line of names",
    ".parquet": "a Parquet file",
    ".npz": "an .npz file with arrays X and y",
}
NAMES = {".csv": _csv_names, ".csv.gz": _csv_names, ".parquet": _parquet_names, ".npz": _npz_names}
CHUNKS = {
    ".csv": _csv_chunks,
    ".csv.gz": _csv_chunks,
    ".parquet": _parquet_chunks,
    ".npz": _npz_chunks,
}
