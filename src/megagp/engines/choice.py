"""Which engine runs a case, and why."""

from __future__ import annotations

import torch
from torch import Tensor

from megagp.engines.base import Engine
from megagp.engines.native import NativeEngine
from megagp.engines.tiles import TilesEngine
from megagp.engines.triton import TritonEngine
from megagp.kernels import Kernel

ENGINES: dict[str, type[Engine]] = {
    "native": NativeEngine,
    "tiles": TilesEngine,
    "triton": TritonEngine,
}


def choose(
    engine: str | Engine, kernel: Kernel, X: Tensor, Z: Tensor | None, dtype: torch.dtype
) -> tuple[Engine, str]:
    """The engine to use and the reason; a named one that can't run the case is an error.

    "auto": triton for points on a CUDA device, native for those on the CPU, and tiles for
    what these two don't know, with the reason why.
    """
    if isinstance(engine, str) and engine == "auto":
        fused = TritonEngine() if X.device.type == "cuda" else NativeEngine()
        support = fused.supports(kernel, X, Z, dtype)
        return fused if support.ok else TilesEngine(), f"auto: {support.reason}"
    if isinstance(engine, str) and engine in ENGINES:
        chosen = ENGINES[engine]()
    elif isinstance(engine, Engine):
        chosen = engine
    else:
        names = ", ".join(map(repr, ENGINES))
        raise ValueError(f"engine: expected 'auto', {names} or an Engine, got {engine!r}")
    support = chosen.supports(kernel, X, Z, dtype)
    if not support.ok:
        raise ValueError(
            f"engine: {chosen.name} can't run this: {support.reason}; use engine='auto' or 'tiles'"
        )
    return chosen, f"asked for: {support.reason}"
