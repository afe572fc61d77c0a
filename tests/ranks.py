"""Start gloo ranks on this machine, run a function on each, collect what it returns."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

# A server that has imported torch once forks the ranks: an import for each would take longer
# than what they do.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["megagp", "torch.distributed", "reference"])
PATIENCE = 120  # seconds for all that one call does


def run(size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """function(*args) on `size` ranks; an exception comes back as its traceback."""
    port = free_port()
    pipes = [CONTEXT.Pipe(duplex=False) for _ in range(size)]
    processes = [
        CONTEXT.Process(target=_rank, args=(rank, size, port, pipe[1], function, args))
        for rank, pipe in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    results = []
    for process, (receiver, sender) in zip(processes, pipes, strict=True):
        sender.close()
        try:
            results.append(receiver.recv() if receiver.poll(PATIENCE) else TimeoutError(PATIENCE))
        except EOFError:  # the process ended without a word
            process.join(PATIENCE)
            results.append(SystemExit(process.exitcode))
    for process in processes:
        process.join(10)
        process.kill()
    return results


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _rank(
    rank: int, size: int, port: int, sender: Any, function: Callable[..., Any], args: Any
) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    try:
        sender.send(function(*args))
    except BaseException:
        sender.send(RuntimeError(traceback.format_exc()))
        raise
