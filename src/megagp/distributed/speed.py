"""How fast a rank is: what it is made of, and products per second where that differs."""

from __future__ import annotations

import platform
import time
from pathlib import Path

import torch

from megagp.engines import NativeEngine, TilesEngine
from megagp.kernels import Matern32

SIZE, DIMENSIONS, COLUMNS = 6144, 8, 4


def kind() -> str:
    """Machines of the same kind are taken to be equally fast."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = [platform.processor()]
    model = sorted({line for line in lines if line.startswith(("model", "cpu family", "CPU part"))})
    devices = [torch.cuda.get_device_name()] if torch.cuda.is_available() else []
    return "\n".join([platform.machine(), *model, *devices, str(torch.get_num_threads())])


def speed(repeats: int = 5) -> float:
    """Symmetric products per second, the best of a few, by the engine that will be used."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(SIZE, DIMENSIONS, dtype=torch.float64, generator=generator).to(device)
    V = torch.randn(SIZE, COLUMNS, dtype=torch.float64, generator=generator).to(device)
    kernel = Matern32(1.0)
    native = NativeEngine()
    usable = native.supports(kernel, X, None, torch.float32).ok
    prepared = (native if usable else TilesEngine()).prepare(kernel, X, None, torch.float32, 0.0)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        float(prepared.matmul(V)[0, 0])  # a number, so that a device has finished
        times.append(time.perf_counter() - start)
    return 1 / min(times)
