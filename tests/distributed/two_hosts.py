"""A fit on two hosts whose link is cut: a clear error on both, and the same command resumes.

Two network namespaces joined by a virtual link stand for the hosts. Needs root and iproute2;
`make test-netns` runs it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import megagp
from megagp.checkpoint import JOURNAL
from megagp.storage import read

HOSTS = ("megagp-a", "megagp-b")
ADDRESSES = ("10.77.13.1", "10.77.13.2")
TIMEOUT = 10.0  # seconds that a rank waits for the other
PATIENCE = 600.0  # and this script for anything


def main() -> None:
    try:
        set_up()
        with tempfile.TemporaryDirectory() as folder:
            cut_and_resume(Path(folder))
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "delete", host], check=False, capture_output=True)


def cut_and_resume(folder: Path) -> None:
    X = write_table(folder / "table.npz")
    hosts = [start(rank, folder, "cut") for rank in range(2)]
    wait_for(folder / "cut" / JOURNAL, hosts)
    ip("link", "set", "veth0", "down", host=0)
    cut = time.monotonic()
    messages = [host.communicate(timeout=PATIENCE)[1] for host in hosts]
    seconds = time.monotonic() - cut
    for host, message in zip(hosts, messages, strict=True):
        expect(host.returncode == 1, f"exit code 1, got {host.returncode}: {message}")
        expect("another rank stopped or can't be reached" in message, f"a reason, got: {message}")
    print(f"link cut: both ranks gave up after {seconds:.0f} s (they wait for {TIMEOUT:.0f} s)")
    done = evaluations(folder)
    ip("link", "set", "veth0", "up", host=0)
    hosts = [start(rank, folder, "cut") for rank in range(2)]
    messages = [host.communicate(timeout=PATIENCE)[1] for host in hosts]
    expect(all(host.returncode == 0 for host in hosts), f"success, got {messages}")
    total = evaluations(folder)
    expect(0 < done < total, f"a fit cut in the middle, got {done} of {total} evaluations before")
    print(f"resumed: {done} of {total} evaluations came from the checkpoint")
    hosts = [start(rank, folder, "uninterrupted") for rank in range(2)]
    messages = [host.communicate(timeout=PATIENCE)[1] for host in hosts]
    expect(all(host.returncode == 0 for host in hosts), f"success, got {messages}")
    found, expected = (
        megagp.load(folder / f"{name}.mgp").predict(X) for name in ("cut", "uninterrupted")
    )
    difference = float(np.abs(found - expected).max())
    expect(difference < 1e-6, f"the predictions of an uninterrupted fit, got {difference:.2g} off")
    print(f"predictions differ from those of an uninterrupted fit by {difference:.1g} at most")


def set_up() -> None:
    for host in HOSTS:
        subprocess.run(["ip", "netns", "add", host], check=True)
    link = ["ip", "link", "add", "veth0", "netns", HOSTS[0], "type", "veth"]
    subprocess.run([*link, "peer", "name", "veth0", "netns", HOSTS[1]], check=True)
    for i, address in enumerate(ADDRESSES):
        ip("addr", "add", f"{address}/24", "dev", "veth0", host=i)
        ip("link", "set", "veth0", "up", host=i)
        ip("link", "set", "lo", "up", host=i)


def ip(*arguments: str, host: int) -> None:
    subprocess.run(["ip", "-n", HOSTS[host], *arguments], check=True)


def start(rank: int, folder: Path, name: str) -> subprocess.Popen[str]:
    """One host's part of a fit, with a checkpoint and a model of that name."""
    command = [sys.executable, "-m", "megagp", "fit", str(folder / "table.npz")]
    options = ["--checkpoint", str(folder / name), "--timeout", str(TIMEOUT)]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29511"}
    own = {"RANK": str(rank), "GLOO_SOCKET_IFNAME": "veth0", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        ["ip", "netns", "exec", HOSTS[rank], *command, *options, "-o", str(folder / f"{name}.mgp")],
        env={**os.environ, **shared, **own},
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path, hosts: list[subprocess.Popen[str]]) -> None:
    end = time.monotonic() + PATIENCE
    while not path.exists():
        expect(time.monotonic() < end, f"{path} within {PATIENCE:.0f} s")
        expect(all(host.poll() is None for host in hosts), "two ranks at work, got one that ended")
        time.sleep(0.02)


def evaluations(folder: Path) -> int:
    return len(read(folder / "cut" / JOURNAL)[0]["entries"])


def write_table(path: Path) -> np.ndarray:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1600, 3))
    np.savez(path, X=X, y=np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=1600))
    return X[:50]


def expect(ok: bool, what: str) -> None:
    if not ok:
        raise SystemExit(f"two hosts: expected {what}")


if __name__ == "__main__":
    main()
