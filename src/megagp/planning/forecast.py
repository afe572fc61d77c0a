"""Work times rates: what a fit on some devices will take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megagp.engines.triton.pairs import PANEL
from megagp.planning.rates import Rates
from megagp.planning.workload import Leg
from megagp.progress import clock

# Vectors of n x columns that a solve holds at once: right-hand sides, solutions, residuals,
# directions, their products, the preconditioned, the best so far, an old start.
VECTORS = 9
# What a product adds: V in the evaluation dtype, and two doubles per sum.
PER_SUM = 4 + 16
# Of a point: X as given and in the engine's order, its features in float64 and float32.
PER_COORDINATE = 8 + 8 + 8 + 4


@dataclass(frozen=True)
class Part:
    """A leg and its forecast."""

    leg: Leg
    seconds: float
    communicated: float


def partitions(n: int) -> int:
    """Pairs of tiles that the kernel matrix of n points is worked through in."""
    tiles = -(-n // PANEL)
    return tiles * (tiles + 1) // 2


@dataclass(frozen=True)
class Forecast:
    """What a fit will take. Bytes are per device, and communication is what a device sends."""

    n: int
    d: int
    devices: int
    source: str
    parts: tuple[Part, ...]
    memory: float

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)

    @property
    def communicated(self) -> float:
        return sum(part.communicated for part in self.parts)

    @property
    def kernel_evaluations(self) -> float:
        return sum(part.leg.kernel_evaluations for part in self.parts)

    @property
    def partitions(self) -> int:
        """Pairs of tiles of the whole matrix, which the devices share."""
        return partitions(self.n)

    def lines(self) -> Iterator[str]:
        """The forecast in words."""
        yield (
            f"forecast for {self.n:,} x {self.d} on {self.devices} "
            f"{'device' if self.devices == 1 else 'devices'}: {clock(self.seconds)}"
        )
        for part in self.parts:
            leg = part.leg
            how = f"{leg.evaluations:.0f} evaluations" if leg.gradients or leg.dense else "a solve"
            solves = "dense" if leg.dense else f"{leg.iterations:.0f} iterations, rank {leg.rank}"
            yield (
                f"{leg.name}: {clock(part.seconds)} "
                f"({leg.points:,} points, {how}, {solves}, {leg.kernel_evaluations:.2g} "
                "kernel evaluations)"
            )
        yield f"memory per device: {size(self.memory)}"
        yield (
            f"partitions: {self.partitions:,} pairs of {PANEL} points, "
            f"{-(-self.partitions // self.devices):,} per device"
        )
        yield f"kernel evaluations: {self.kernel_evaluations:.3g}"
        yield f"communication per device: {size(self.communicated)}"
        yield f"speed: {self.source}"
        yield "iterations are typical ones; those of your data show after the first solves"


def forecast(n: int, d: int, legs: list[Leg], rates: Rates, devices: int = 1) -> Forecast:
    """Seconds, bytes and messages of these legs on so many equal devices.

    Pairs and the preconditioner's rows are shared out; what is dense, and the search for
    neighbours, is done by each device.
    """
    if devices < 1:
        raise ValueError(f"devices: expected at least 1, got {devices}")
    parts = []
    for leg in legs:
        sent = _communicated(leg, devices)
        seconds = _shared(leg, rates) / devices + _by_each(leg, rates) + sent / rates.link
        parts.append(Part(leg, seconds, sent))
    memory = max(_memory(leg, d, devices) for leg in legs)
    return Forecast(n, d, devices, rates.source, tuple(parts), memory)


def _shared(leg: Leg, rates: Rates) -> float:
    """Seconds of one device for what devices share."""
    if leg.dense:
        return 0.0
    width = 1 + leg.width * (leg.columns - 1)
    pairs, n, k = leg.pairs, leg.points, leg.rank
    evaluated = leg.evaluated / leg.evaluations
    column = pairs * rates.product_column + n * k * rates.apply
    evaluation = evaluated * pairs * rates.product + (leg.iterations + 1) * width * column
    evaluation += pairs * (leg.gradients * rates.gradient + leg.precise * rates.precise)
    if not leg.gradients:
        return leg.evaluations * evaluation  # with the preconditioner of the last evaluation
    evaluation += n * k * (k * rates.setup + leg.neighbours**2 * rates.gather)
    return leg.evaluations * evaluation + n * k**2 * rates.draw


def _by_each(leg: Leg, rates: Rates) -> float:
    """Seconds for what every device does for itself."""
    if leg.dense:
        return leg.evaluations * leg.points**3 * rates.dense
    return leg.points**2 * rates.search if leg.gradients and leg.neighbours else 0.0


def _communicated(leg: Leg, devices: int) -> float:
    """Bytes a device sends: a sum over all is a ring of 2 (p - 1) / p of what is summed."""
    if leg.dense or devices == 1:
        return 0.0
    ring = 2 * (devices - 1) / devices
    width = 1 + leg.width * (leg.columns - 1)
    products = leg.products + leg.evaluations * leg.precise
    # A product sums n x t; a solve with the preconditioner sums k x t and gathers n x t.
    vectors = products * 8 * width * (ring * (leg.points + leg.rank) + 0.5 * ring * leg.points)
    return vectors + leg.evaluations * ring * 8 * leg.rank**2


def _memory(leg: Leg, d: int, devices: int) -> float:
    n = leg.points
    if leg.dense:
        return 8.0 * 6 * n * n
    vectors = n * leg.columns * (8 * VECTORS + PER_SUM)
    # A device's rows of L, in float32 (float64 where that is small). With neighbours it gathers
    # all of L, since a row needs those of its predecessors.
    gathered = 1 if leg.neighbours and devices > 1 else 0
    preconditioner = (gathered + 1 / devices) * 4 * n * leg.rank + 2 * 12 * n * leg.neighbours
    return vectors + n * d * PER_COORDINATE + preconditioner + leg.kept / devices


def size(count: float) -> str:
    """Bytes as people say them."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
