"""Tables in every format: what is read is what was written, and bad ones say what is wrong."""

import gzip

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from megagp import tables
from megagp.tables import FORMATS, TableError, Writer, chunks, column_names, read

rng = np.random.default_rng(0)
COLUMNS = {"a": rng.standard_normal(10), "b.c": rng.standard_normal(10), "y": np.arange(10.0)}


def save(path, columns):
    if path.suffix == ".npz":
        *features, y = columns.values()
        np.savez(path, X=np.stack(features, axis=1), y=y)
        return ["x0", "x1", "y"]
    with Writer(path, list(columns)) as out:
        out.write(*[np.asarray(v) for v in columns.values()])
    return list(columns)


@pytest.mark.parametrize("ending", FORMATS)
def test_round_trip_and_order_of_columns(tmp_path, ending):
    path = tmp_path / f"table{ending}"
    names = save(path, COLUMNS)
    assert column_names(path) == names
    expected = np.stack(list(COLUMNS.values()), axis=1)
    np.testing.assert_array_equal(read(path, names), expected)
    np.testing.assert_array_equal(read(path, names[::-1]), expected[:, ::-1])
    np.testing.assert_array_equal(read(path, names[1:2]), expected[:, 1:2])


@pytest.mark.parametrize("ending", FORMATS)
def test_many_chunks(tmp_path, ending, monkeypatch):
    monkeypatch.setattr(tables, "ROWS", 64)
    monkeypatch.setattr(tables, "BLOCK", 4096)
    columns = {"a": rng.standard_normal(1000), "b": rng.standard_normal(1000), "y": np.ones(1000)}
    path = tmp_path / f"table{ending}"
    names = save(path, columns)
    found = list(chunks(path, names))
    assert len(found) > 5
    np.testing.assert_array_equal(np.concatenate(found)[:, 0], columns["a"])


@pytest.mark.parametrize("ending", FORMATS)
def test_writing_in_chunks(tmp_path, ending):
    path = tmp_path / f"out{ending}"
    with Writer(path, ["mean", "std"]) as out:
        for start in range(3):
            out.write(np.array([start + 0.1, 1e-300]), np.array([1.0, np.pi]))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    if ending == ".npz":
        with np.load(path) as arrays:
            found = np.stack([arrays["mean"], arrays["std"]], axis=1)
    else:
        found = read(path, column_names(path))
    assert found[:, 0].tolist() == [0.1, 1e-300, 1.1, 1e-300, 2.1, 1e-300]
    assert found[:, 1].tolist() == [1.0, np.pi] * 3


def test_csv_output_is_plain(tmp_path):
    with Writer(tmp_path / "out.csv", ["mean", "std"]) as out:
        out.write(np.array([0.1]), np.array([2.5]))
    assert (tmp_path / "out.csv").read_text() == "mean,std\n0.1,2.5\n"
    with Writer(tmp_path / "out.csv.gz", ["mean"]) as out:
        out.write(np.array([0.1]))
    assert gzip.decompress((tmp_path / "out.csv.gz").read_bytes()) == b"mean\n0.1\n"


def interrupt(out):
    out.write(np.ones(3))
    raise ValueError("4")


@pytest.mark.parametrize("ending", FORMATS)
def test_a_failure_leaves_the_old_output(tmp_path, ending):
    path = tmp_path / f"out{ending}"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="4"), Writer(path, ["mean"]) as out:
        interrupt(out)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_numbers_of_a_later_block_may_look_different(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "BLOCK", 1024)
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1,2\n" * 5000 + "0.5,1e-3\n")
    assert read(path, ["a", "b"])[-1].tolist() == [0.5, 1e-3]


def test_spreadsheet_habits(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("\ufeffÄ,b\r\n1,2\r\n3,4".encode())
    assert column_names(path) == ["Ä", "b"]
    assert read(path, ["b", "Ä"]).tolist() == [[2, 1], [4, 3]]
    path.write_text("a,b\n1 , 2\n\t3,4\n")
    assert read(path, ["a", "b"]).tolist() == [[1, 2], [3, 4]]


def fails(path, *fragments):
    with pytest.raises(TableError) as caught:
        read(path, column_names(path))
    message = str(caught.value)
    assert str(path) in message
    for fragment in fragments:
        assert fragment in message


@pytest.mark.parametrize(
    ("content", "fragments"),
    [
        ("", ["Empty CSV"]),
        ("a,b", ["expected a table"]),
        ("a,b\n", ["at least one row"]),
        ("1.5,2\n3,4\n", ["column names in the first line", "1.5, 2"]),
        ("a;b\n1;2\n", ["commas between columns"]),
        ("a,a\n1,2\n", ["distinct column names", "a twice"]),
        ("a,b\n1,2\n3\n", ["Expected 2 columns, got 1"]),
        ("a,b\n1,2\n3,red\n4,blue\n", ["column 'b'", "'red' in row 2", "drop the column"]),
        ("a,b\n1 ,2\n3,red", ["column 'b'", "'red' in row 2"]),
        ("a,b\n1,2\n1_000,3\n", ["column 'a'", "'1_000' in row 2", "turn it into numbers"]),
        ("a,b\n1,\u0661\n", ["column 'b'", "'\u0661' in row 1"]),  # an Arabic 1
        ("a,b\n1,2\n,3\n4,NA\nnan,5\n", ["column 'a'", "2 missing", "of 4", "first in row 2"]),
        ("a,b\n1,2\n3,inf\n", ["column 'b'", "1 missing or infinite of 2", "row 2"]),
        (b"\xe4,b\n1,2\n", ["UTF-8"]),
        (b"PK\x00\xff\xfe", ["expected a table"]),
    ],
)
def test_bad_csv(tmp_path, content, fragments):
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    fails(path, *fragments)


def test_a_bad_value_far_down_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "BLOCK", 1024)
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1,2\n" * 5000 + "3,red\n")
    fails(path, "column 'b'", "'red' in row 5001")


def test_bad_parquet(tmp_path):
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": [1, 2], "s": [None, "red"]}), path)
    fails(path, "column 's'", "string", "'red'")
    pyarrow.parquet.write_table(pyarrow.table({"a": [1.0, None], "b": [True, False]}), path)
    fails(path, "column 'a'", "1 missing", "row 2")
    pyarrow.parquet.write_table(pyarrow.table({"a": pyarrow.array([], pyarrow.float64())}), path)
    fails(path, "at least one row")
    path.write_bytes(b"not parquet at all")
    fails(path, "expected a Parquet file")


def test_parquet_of_whole_numbers_and_flags(tmp_path):
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": [1, 2], "b": [True, False]}), path)
    assert read(path, ["a", "b"]).tolist() == [[1, 1], [2, 0]]


@pytest.mark.parametrize(
    ("arrays", "fragment"),
    [
        ({"Z": np.ones(3)}, "expected an array X"),
        ({"X": np.ones(3)}, "n x d"),
        ({"X": np.ones((0, 2))}, "n x d"),
        ({"X": np.ones((3, 2)), "y": np.ones(4)}, "y of (4,)"),
        ({"X": np.array([["a"]])}, "of numbers"),
        ({"X": np.array([[{}]], dtype=object)}, "pickle"),
        ({"X": np.array([[np.nan, 1.0]])}, "column 'x0'"),
    ],
)
def test_bad_npz(tmp_path, arrays, fragment):
    path = tmp_path / "t.npz"
    np.savez(path, **arrays)
    fails(path, fragment)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 cut"])
def test_npz_of_nonsense(tmp_path, content):
    path = tmp_path / "t.npz"
    path.write_bytes(content)
    fails(path, "expected an .npz file")


def damaged(content):
    """Cut short, or with one byte changed, at places all over the file."""
    yield from (content[:end] for end in range(0, len(content), 13))
    for at in range(0, len(content), 3):
        for bits in (0x01, 0x20, 0xFF):
            yield content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_npz(tmp_path, save):
    """One line that says so, or what was saved: some bytes of a zip file are read by nobody."""
    path = tmp_path / "t.npz"
    X = np.random.default_rng(0).standard_normal((20, 2))
    save(path, X=X, y=X[:, 0])
    said = []
    for content in damaged(path.read_bytes()):
        path.write_bytes(content)
        try:
            names = column_names(path)
            np.testing.assert_array_equal(read(path, names), X[:, [0, 1, 0][: len(names)]])
        except TableError as error:
            said.append(str(error))
    assert len(said) > 500
    assert all(message.startswith(f"{path}: expected") for message in said)
    assert not any("\n" in message for message in said)


def test_truncated_gzip(tmp_path):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 1000)[:-12])
    fails(path, "expected a gzipped table")


def test_names_and_places(tmp_path):
    with pytest.raises(TableError, match=r"ends in \.csv, \.csv\.gz, \.parquet, \.npz"):
        column_names(tmp_path / "t.xlsx")
    with pytest.raises(TableError, match="got none; check the name"):
        column_names(tmp_path / "absent.csv")
    with pytest.raises(TableError, match="folder that exists"):
        Writer(tmp_path / "no" / "t.csv", ["a"])
