"""megagp demo: a robot arm, learned and checked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import megagp
from megagp.cli.plot import draw
from megagp.cli.reporting import note
from megagp.scores import score

TEST_POINTS = 5_000
NOISE_STD = 0.05


def demo(
    n: Annotated[int, typer.Option(min=10, help="Training points.")] = 50_000,
    joints: Annotated[int, typer.Option(min=1, help="Joints of the arm: features.")] = 6,
    plot: Annotated[Path, typer.Option(help="Picture to write.")] = Path("demo.png"),
    random_state: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
) -> None:
    """Learn where a robot arm reaches, from noisy examples, and check the predictions.

    [bold]Examples[/bold]

    megagp demo

    megagp demo --n 5000 --plot arm.png
    """
    if plot.is_dir() or not plot.parent.is_dir():
        raise ValueError(f"{plot}: expected a file name in a folder that exists; create it first")
    X, y = megagp.datasets.robot_arm(n + TEST_POINTS, joints, NOISE_STD, random_state)
    note(f"robot arm with {joints} joints: {n} training points, {TEST_POINTS} test points")
    start = time.perf_counter()
    model = megagp.GPRegressor(random_state=random_state, verbose=1).fit(X[:n], y[:n])
    fitted = time.perf_counter()
    mean, std = model.predict(X[n:], return_std=True)
    predicted = time.perf_counter()
    for name, seconds in timings(model.diagnostics_):
        typer.echo(f"{name:<24} {seconds:9.1f} s")
    typer.echo(f"{'fit, in all':<24} {fitted - start:9.1f} s")
    typer.echo(f"{'predict':<24} {predicted - fitted:9.1f} s")
    typer.echo(f"test: {score(y[n:], mean, std)}; the noise has std {NOISE_STD}")
    try:
        draw(plot, y[n:], mean, std)
    except ModuleNotFoundError:
        note("no picture: matplotlib is not installed; get it with pip install 'megagp[plot]'")
    else:
        note(f"wrote {plot}")


def timings(diagnostics: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every "seconds" in the diagnostics, by the "phase" beside it or the key above it."""
    items = diagnostics.items() if isinstance(diagnostics, dict) else enumerate(diagnostics)
    for key, value in items:
        if key == "seconds" and isinstance(value, int | float):
            yield str(diagnostics.get("phase", name)), float(value)
        elif isinstance(value, dict | list):
            yield from timings(value, str(key))
