"""A run in processes of its own, so that its memory, its end and its time are its own too."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from megagp.experiments.machine import circumstances, now
from megagp.experiments.run import FAILED, Record, Run

WORKER = (sys.executable, "-m", "megagp.experiments.worker")
# Seconds between looks at the processes.
INTERVAL = 0.05


def execute(run: Run, budget: float | None = None, command: Sequence[str] = WORKER) -> Record:
    """The record of the run: done, or failed with the reason.

    budget: seconds after which it counts as failed. Ranks, if the run has "workers", are
    processes of one thread each.
    """
    started, begin = now(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="megagp-run-") as name, ExitStack() as stack:
        folder = Path(name)
        ranks = [
            stack.enter_context(_process(command, environment, folder / f"rank{i}"))
            for i, environment in enumerate(_environments(run.settings.get("workers")))
        ]
        order = {"run": asdict(run), "output": str(folder / "record.json")}
        for rank in ranks:
            _tell(rank, json.dumps(order) + "\n")
        reason = None
        while reason is None and any(rank.poll() is None for rank in ranks):
            time.sleep(INTERVAL)
            if budget is not None and time.perf_counter() - begin > budget:
                reason = f"the time budget of {budget:g} s was used up"
            elif any(rank.poll() for rank in ranks):
                break
        if reason is None:
            for i, rank in enumerate(ranks):
                if rank.poll():
                    reason = _explain(rank.returncode, folder / f"rank{i}")
                    break
        if reason is None:
            found: Record = json.loads((folder / "record.json").read_text())
            return found
    return run.record(FAILED, reason, **circumstances(started))


def _environments(workers: int | None) -> list[dict[str, str]]:
    """Of each process: this one's, and for ranks the place where they meet."""
    alone = {k: v for k, v in os.environ.items() if k not in ("WORLD_SIZE", "RANK")}
    if workers is None:
        return [alone]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meeting = {"WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    one = {"OMP_NUM_THREADS": "1"}
    return [{**alone, **meeting, **one, "RANK": str(i)} for i in range(workers)]


@contextmanager
def _process(
    command: Sequence[str], environment: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[str]]:
    """A process in a session of its own: Ctrl-C is for us, and its children end with it."""
    with log.open("w") as stream:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=stream,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(line)
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it has ended already, which its exit code tells


def _explain(code: int, log: Path) -> str:
    """Why a process ended: its last line, or the signal."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else "it said nothing"
    if code >= 0:
        return last
    name = signal.Signals(-code).name
    hint = ", perhaps for want of memory" if name == "SIGKILL" else ""
    return f"the process was ended by {name}{hint}" + (f": {last}" if lines else "")
