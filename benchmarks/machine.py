"""Facts about the machine and the versions, to be stored with every measurement."""

from __future__ import annotations

import platform
import subprocess
import threading
from pathlib import Path

import torch

import megagp
from megagp import _native


def facts() -> dict[str, object]:
    return {
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "instruction_sets": megagp.engines.instruction_sets(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "revision": revision(),
    }


def cpu_name() -> str:
    """The model name, and where a virtual machine hides it, the family and model numbers."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    found = dict(line.split(":", 1) for line in reversed(lines) if ":" in line)
    found = {key.strip(): value.strip() for key, value in found.items()}
    name, family, model = (found.get(k, "?") for k in ("model name", "cpu family", "model"))
    return f"{name} (family {family}, model {model})"


def revision() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def fma_rate(seconds: float = 0.3) -> float:
    """float32 multiply-adds per second that all threads together reach on independent chains."""
    rates: list[float] = []
    best = megagp.engines.instruction_sets()[0]

    def run() -> None:
        rates.append(_native.fma_rate(best, seconds))

    threads = [threading.Thread(target=run) for _ in range(torch.get_num_threads())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates)
