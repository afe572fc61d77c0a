"""The robot arm against its kinematics, the loaders against files and checksums."""

import gzip
import hashlib
import os
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from megagp.datasets import DATASETS, Facts, arm, collection, download, load, robot_arm, split

BESIDE = Path(__file__).parents[2] / "shared" / "data"
FOLDER = Path(os.environ.get("MEGAGP_DATA") or BESIDE)


def tip(angles):
    """Forward kinematics with rotation matrices, joint by joint from the base."""
    turn, position = np.eye(3), np.zeros(3)
    for joint, angle in enumerate(angles):
        c, s = np.cos(angle), np.sin(angle)
        vertical = [[c, -s, 0], [s, c, 0], [0, 0, 1]]
        horizontal = [[c, 0, s], [0, 1, 0], [-s, 0, c]]
        turn = turn @ np.array(horizontal if joint % 2 else vertical)
        position = position + turn @ [1 / len(angles), 0, 0]
    return position


@pytest.mark.parametrize("joints", [1, 2, 5])
def test_robot_arm_is_forward_kinematics(joints):
    X, y = robot_arm(50, joints, noise_std=0.0, random_state=3)
    assert X.shape == (50, joints)
    distance = [np.linalg.norm(tip(x) - 1) for x in X]
    slope, offset = np.polyfit(distance, y, 1)
    np.testing.assert_allclose(slope * np.array(distance) + offset, y, atol=1e-12)
    assert slope > 0


@pytest.mark.parametrize("joints", [1, 4, 6])
def test_robot_arm_has_unit_scale_and_every_joint_matters(joints):
    X, y = robot_arm(5000, joints, noise_std=0.0)
    assert abs(y.mean()) < 0.1
    assert y.std() == pytest.approx(1, abs=0.1)
    assert np.abs(X).max() <= np.pi / 2
    for joint in range(joints):
        moved = X.copy()
        moved[:, joint] = np.roll(moved[:, joint], 1)
        change = arm._distance(moved) - arm._distance(X)
        assert np.abs(change).mean() > 0.05


def test_robot_arm_noise_and_seed():
    X, clean = robot_arm(4000, noise_std=0.0, random_state=5)
    Z, noisy = robot_arm(4000, noise_std=0.2, random_state=5)
    np.testing.assert_array_equal(X, Z)
    assert np.std(noisy - clean) == pytest.approx(0.2, rel=0.1)
    np.testing.assert_array_equal(robot_arm(4000, noise_std=0.2, random_state=5)[1], noisy)
    assert not np.array_equal(robot_arm(4000, random_state=6)[0], X)
    assert robot_arm(1)[0].shape == (1, 4)


@pytest.mark.parametrize("wrong", [{"n": 0}, {"n": 3, "joints": 0}, {"n": 3, "noise_std": -1}])
def test_robot_arm_refuses(wrong):
    with pytest.raises(ValueError, match="robot_arm: expected n >= 1"):
        robot_arm(**wrong)


@pytest.mark.parametrize(("n", "n_train"), [(15_000, 9_600), (40_000, 25_600)])
def test_split_has_the_papers_sizes(n, n_train):
    parts = split(np.arange(n)[:, None], np.arange(n))
    assert len(parts.X_train) == n_train
    assert len(parts.X_test) == n // 5


@pytest.mark.parametrize("n", [3, 4, 5, 101])
def test_split_is_a_partition(n):
    X, y = np.arange(2 * n).reshape(n, 2), np.arange(n)
    parts = split(X, y, random_state=1)
    targets = [parts.y_train, parts.y_val, parts.y_test]
    assert sorted(np.concatenate(targets)) == list(range(n))
    assert all(len(part) for part in targets)
    for X_part, y_part in zip(parts[::2], targets, strict=True):
        np.testing.assert_array_equal(X_part[:, 0], 2 * y_part)
    np.testing.assert_array_equal(split(X, y, random_state=1).y_test, parts.y_test)


def test_split_shuffles_and_depends_on_the_seed():
    n = 1000
    first, second = (split(np.zeros((n, 1)), np.arange(n), random_state=s) for s in (0, 1))
    assert not np.array_equal(first.y_test, second.y_test)
    assert abs(first.y_test.mean() - n / 2) < n / 10


def test_split_refuses():
    with pytest.raises(ValueError, match="at least 3 rows"):
        split(np.zeros((2, 1)), np.zeros(2))
    with pytest.raises(ValueError, match="as many targets, got 5 and 4"):
        split(np.zeros((5, 1)), np.zeros(4))


ROWS = np.array([[1.5, -2e-7, 3.0], [0.1, 4.0, 5.0], [7.0, 8.25, 1e9], [0.0, 1.0, 2.0]])


def csv(rows):
    return gzip.compress("".join(",".join(map(repr, row)) + "\n" for row in rows.tolist()).encode())


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Nothing."""


@pytest.fixture
def upstream(tmp_path, monkeypatch):
    """A set `tiny` in two parts on a server of its own, and an empty cache."""
    monkeypatch.setitem(DATASETS, "tiny", Facts(4, 2, ("data.csv.gz", "data1.csv.gz")))
    home = tmp_path / "upstream" / "tiny"
    home.mkdir(parents=True)
    (home / "data.csv.gz").write_bytes(csv(ROWS[:3]))
    (home / "data1.csv.gz").write_bytes(csv(ROWS[3:]))
    monkeypatch.setattr(download, "cache", lambda: tmp_path / "cache")
    monkeypatch.delenv("MEGAGP_DATA", raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=home.parent)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(download, "UPSTREAM", f"http://127.0.0.1:{server.server_port}")
        yield home
        server.shutdown()


@pytest.fixture
def folder(tmp_path, upstream):
    """A folder for local copies, with none yet."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def check_tiny(X, y):
    np.testing.assert_array_equal(X, ROWS[:, :2])
    np.testing.assert_array_equal(y, ROWS[:, 2])
    assert X.dtype == y.dtype == np.float64


def test_download_in_parts_then_from_the_cache(upstream, monkeypatch):
    check_tiny(*load("tiny"))
    assert sorted(p.name for p in (download.cache() / "tiny").iterdir()) == [
        "data.csv.gz",
        "data1.csv.gz",
    ]
    monkeypatch.setattr(download, "UPSTREAM", "http://127.0.0.1:1")
    check_tiny(*load("tiny"))


def test_local_copies_go_first(folder, upstream, monkeypatch):
    (folder / "tiny").mkdir()
    X = ROWS[:, :2].astype(np.float32)
    np.savez(folder / "tiny" / "data.npz", X=X, y=ROWS[:, 2].astype(np.float32))
    monkeypatch.setenv("MEGAGP_DATA", str(folder))
    for found, y in (load("tiny"), load("tiny", folder)):
        np.testing.assert_array_equal(found, X.astype(np.float64))
        assert found.dtype == y.dtype == np.float64
    assert not download.cache().exists()
    (folder / "tiny" / "data.npz").unlink()
    (folder / "tiny" / "data.csv.gz").write_bytes(csv(ROWS[:3] + 1))
    check_tiny(*load("tiny"))  # a part is missing: all of it from the collection


def test_an_absent_set_says_what_to_put_where(folder, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"data1\.csv\.gz .*data\.npz .*download=True"):
        load("tiny", folder, download=False)
    with pytest.raises(FileNotFoundError, match=r"set MEGAGP_DATA=.*no download"):
        load("fhw_lags")
    with pytest.raises(ValueError, match=r"expected one of pol, .* got 'nope'"):
        load("nope", folder)
    monkeypatch.setenv("MEGAGP_DATA", str(folder / "nowhere"))
    with pytest.raises(FileNotFoundError, match="MEGAGP_DATA: expected the folder"):
        load("tiny")


def test_checksums_guard_downloads_and_files(folder, upstream, monkeypatch):
    known = hashlib.sha256((upstream / "data.csv.gz").read_bytes()).hexdigest()
    monkeypatch.setitem(collection.SHA256, "tiny/data.csv.gz", known)
    check_tiny(*load("tiny"))
    (folder / "tiny").mkdir()
    (folder / "tiny" / "data.csv.gz").write_bytes(csv(ROWS[:3] + 1))
    (folder / "tiny" / "data1.csv.gz").write_bytes(csv(ROWS[3:]))
    with pytest.raises(ValueError, match="expected sha256"):
        load("tiny", folder)
    monkeypatch.setitem(collection.SHA256, "tiny/data.csv.gz", "0" * 64)
    (download.cache() / "tiny" / "data.csv.gz").unlink()
    with pytest.raises(ValueError, match=r"expected sha256 0+, got another file; fetch it"):
        load("tiny")
    assert not (download.cache() / "tiny" / "data.csv.gz").exists()


def test_failed_downloads_leave_nothing(upstream):
    (upstream / "data.csv.gz").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ValueError, match="expected a gzip file, got b'version"):
        load("tiny")
    (upstream / "data.csv.gz").unlink()
    with pytest.raises(OSError, match=r"got 404 .*fetch it yourself, .* set MEGAGP_DATA"):
        load("tiny")
    assert not (download.cache() / "tiny" / "data.csv.gz").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (csv(ROWS), "expected 4 x 2 and 4 targets, got"),
        (gzip.compress(b"a,b,c\n1,2,3\n"), "expected numbers"),
        (gzip.compress(b"1,2\n3\n"), "expected numbers"),
        (gzip.compress(b""), "expected numbers"),
        (csv(ROWS)[:-9], "expected numbers"),
        (b"", "expected numbers"),
    ],
    ids=["too many", "header", "ragged", "nothing", "truncated", "no gzip"],
)
def test_broken_files(folder, content, message):
    (folder / "tiny").mkdir(parents=True)
    (folder / "tiny" / "data.csv.gz").write_bytes(content)
    (folder / "tiny" / "data1.csv.gz").write_bytes(csv(ROWS[3:]))
    with pytest.raises(ValueError, match=message):
        load("tiny", folder)


@pytest.mark.parametrize("name", DATASETS)
def test_real_sets(name):
    """The loader itself checks sums and sizes."""
    if not (FOLDER / name).is_dir():
        pytest.skip(f"{name} is not in MEGAGP_DATA")
    X, y = load(name, FOLDER)
    assert X.dtype == y.dtype == np.float64
    assert np.isfinite(X).all()
    assert np.isfinite(y).all()
    assert X.flags.c_contiguous
