"""How fast a GPU could run the triton engine: an estimate, from no measurement on any GPU.

The compiler says how many instructions of each kind a pair of points takes
(`benchmarks/triton_static.py`); the data sheet says how many of each kind a GPU issues per
clock. The slowest kind sets the pace, if everything else is hidden behind it, which it never is:
FRACTION of that is assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from megagp.planning.rates import Rates

# Share of the roofline that is assumed to be reached; what a fused kernel on GPUs often does.
FRACTION = 0.5


@dataclass(frozen=True)
class GPU:
    """A data sheet. Rates per multiprocessor and clock are in lanes, of 32 in a warp.

    memory: bytes; bandwidth: bytes per second of it; link: bytes per second to other GPUs of
    the machine, one way; float64: multiply-adds per second.
    """

    name: str
    architecture: int
    multiprocessors: int
    clock: float
    float32: int
    special: int
    memory: float
    bandwidth: float
    float64: float
    link: float


GPUS = {
    gpu.name: gpu
    for gpu in (
        GPU("v100", 70, 80, 1.53e9, 64, 16, 32e9, 0.90e12, 3.9e12, 150e9),
        GPU("a100", 80, 108, 1.41e9, 64, 16, 80e9, 2.04e12, 4.9e12, 300e9),
        GPU("h100", 90, 132, 1.98e9, 128, 16, 80e9, 3.35e12, 16.7e12, 450e9),
    )
}
ISSUED = 128  # lanes per clock: four schedulers, a warp each
SHARED = 32  # lanes per clock of shared memory, caches and shuffles
FLOAT32 = ("FFMA", "FADD", "FMUL")
SPECIAL = ("MUFU",)
MEMORY = ("LDG", "LDS", "STS", "STG", "SHFL", "LDGSTS", "LDSM")


def pairs_per_second(gpu: GPU, per_pair: Mapping[str, float]) -> float:
    """Pairs evaluated per second at the roofline, from instructions of each kind per pair."""

    def lanes(kinds: tuple[str, ...]) -> float:
        return sum(per_pair.get(kind, 0.0) for kind in kinds)

    clocks = max(
        sum(per_pair.values()) / ISSUED,
        lanes(FLOAT32) / gpu.float32,
        lanes(SPECIAL) / gpu.special,
        lanes(MEMORY) / SHARED,
    )
    return gpu.multiprocessors * gpu.clock / clocks


def product_counts(d: int, t: int) -> dict[str, float]:
    """Instructions per pair of a product: lines through what sm_80 has at d = 3, 9 and 20.

    Columns beyond 16 are further passes; from 2 to 16 they cost what 16 do.
    """
    few = d <= 9  # all dimensions of a strip stay in registers
    if t == 1:
        return _counts(
            9.6 + 2 * d, 5.2 + (0.4 if few else 1.2) * d, 18 + 3.05 * d if few else 7.2 * d
        )
    found = _counts(
        34 + 2 * d, 11.5 + 1.1 * d if few else 15 + d, 51 + 3.3 * d if few else 60 + 5.5 * d
    )
    return {kind: -(-t // 16) * count for kind, count in found.items()}


def gradient_counts(d: int, t: int) -> dict[str, float]:
    """Instructions per pair of a gradient with the 2 t columns of [U, W], likewise."""
    width = 16 if 2 * t <= 16 else 32
    found = _counts(6 + width + 6 * d, 3 + 3.2 * d, 3 + width + 14.5 * d)
    return {kind: -(-2 * t // 32) * count for kind, count in found.items()}


def _counts(float32: float, memory: float, total: float) -> dict[str, float]:
    special = 2.0  # a root and a power
    return {
        "FFMA": float32,
        "MUFU": special,
        "LDS": memory,
        "other": total - float32 - special - memory,
    }


def roofline(gpu: GPU, d: int, *, columns: int = 12) -> Rates:
    """Rates of a GPU for points in d dimensions; every one of them an estimate."""

    def seconds(counts: Mapping[str, float]) -> float:
        return 1 / (FRACTION * pairs_per_second(gpu, counts))

    one, all_columns = seconds(product_counts(d, 1)), seconds(product_counts(d, columns))
    column = max(0.0, all_columns - one) / max(1, columns - 1)
    return Rates(
        product=one - column if columns > 1 else one,
        product_column=column,
        # float64 has half the lanes or less, and its roots and powers take tens of instructions.
        precise=8 * one,
        gradient=seconds(gradient_counts(d, columns)),
        draw=2 / (FRACTION * gpu.float64),
        setup=2 / (FRACTION * gpu.float64),
        # Rows of L are gathered once for each neighbour, from memory.
        gather=4 / (FRACTION * gpu.bandwidth * 16),
        search=2 * d / (FRACTION * gpu.float64),
        # Both products with L read it once for all columns.
        apply=2 * 4 / (FRACTION * gpu.bandwidth * columns),
        dense=0.1 / 1000**3,
        link=gpu.link,
        source=f"estimate for {gpu.name}: {FRACTION:.0%} of its roofline, never run on one",
    )
