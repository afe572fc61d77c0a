"""Facts about the machine and the versions, to be stored with every measurement."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from megagp.engines import instruction_sets

PACKAGES = ("megagp", "torch", "numpy", "scipy", "scikit-learn", "lightgbm")
HERE = Path(__file__).resolve()


def facts() -> dict[str, object]:
    """All of it, in one flat table."""
    return {**machine(), **versions(), "revision": revision() or "unknown"}


def machine() -> dict[str, object]:
    """Processor, memory and system."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instruction_sets": instruction_sets(),
        "memory_bytes": _memory(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Of Python and of the packages that results depend on, as far as they are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def circumstances(started: str) -> dict[str, Any]:
    """Where and when."""
    return {
        "machine": machine(),
        "versions": versions(),
        "git": revision(),
        "started": started,
        "finished": now(),
    }


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


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


def revision() -> str | None:
    """The git revision of this source; None for a package that was installed."""
    # A virtual environment may lie in somebody else's repository: ours has this file.
    if _git("ls-files", "--error-unmatch", HERE.name) is None:
        return None
    return _git("describe", "--always", "--dirty")


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(HERE.parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None
