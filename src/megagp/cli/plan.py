"""megagp plan: what a fit will take, before it is begun."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Annotated

import typer

from megagp.cli.reporting import note


class Device(str, Enum):
    cpu = "cpu"
    v100 = "v100"
    a100 = "a100"
    h100 = "h100"


def plan(
    n: Annotated[str, typer.Option(help="Training points; underscores allowed: 1_000_000.")],
    d: Annotated[int, typer.Option(min=1, help="Features.")],
    devices: Annotated[int, typer.Option(min=1, help="Devices that share the work.")] = 1,
    device: Annotated[
        Device, typer.Option(help="cpu: machines like this one, measured; a GPU: estimated.")
    ] = Device.cpu,
    link: Annotated[
        float | None,
        typer.Option(min=0.001, help="Gigabytes per second between devices, if known."),
    ] = None,
) -> None:
    """Say what a fit will take: memory, partitions, kernel evaluations, communication, time.

    [bold]Examples[/bold]

    megagp plan --n 100_000 --d 9

    megagp plan --n 1_311_539 --d 9 --devices 8 --device a100
    """
    # Here, not on top: torch takes seconds, and --help needs none of it.
    from megagp.engines import keeping_budget
    from megagp.planning import GPUS, calibrate, forecast, roofline, workload
    from megagp.planning.forecast import size

    points = _count(n)
    budget = keeping_budget(d) if device is Device.cpu else 0
    legs = workload(points, d, cache_budget=budget)
    columns = max(leg.columns for leg in legs)
    if device is Device.cpu:
        note("measuring this machine")
        rates = calibrate(d, columns=columns)
    else:
        rates = roofline(GPUS[device.value], d, columns=columns)
    if link is not None:
        rates = replace(rates, link=1e9 * link)
    found = forecast(points, d, legs, rates, devices)
    for line in found.lines():
        typer.echo(line)
    if device is not Device.cpu and found.memory > GPUS[device.value].memory:
        room = size(GPUS[device.value].memory)
        note(f"warning: a {device.value} has {room}; use more devices or fewer points")


def _count(n: str) -> int:
    """A whole number, with underscores or in the form 1e6."""
    try:
        value = float(n)
    except ValueError:
        value = float("nan")
    if not (value >= 1 and value == int(value)):
        raise ValueError(f"--n: expected a whole number of points, got {n!r}")
    return int(value)
