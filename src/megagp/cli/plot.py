"""The demo's picture: predictions beside the truth, and whether the intervals hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from megagp.scores import Array, coverage

SHOWN = 200  # points with error bars; more would hide one another


def draw(path: Path, y: Array, mean: Array, std: Array) -> None:
    """Write the picture; ModuleNotFoundError without matplotlib."""
    # Here, not on top: an optional dependency.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)

    shown = slice(0, SHOWN)
    left.errorbar(
        y[shown], mean[shown], 1.96 * std[shown], fmt="o", ms=3, lw=0.8, color="#1f6f8b", alpha=0.8
    )
    ends = [min(y[shown].min(), mean[shown].min()), max(y[shown].max(), mean[shown].max())]
    left.plot(ends, ends, color="#444444", lw=1, zorder=0)
    left.set(
        title=f"Predictions with 95 % intervals, {min(SHOWN, len(y))} test points",
        xlabel="true",
        ylabel="predicted",
    )

    nominal = np.linspace(0.02, 0.99, 98)
    right.plot([0, 1], [0, 1], color="#444444", lw=1, label="exact")
    right.plot(nominal, coverage((y - mean) / std, nominal), color="#c8553d", lw=2, label="megagp")
    right.set(
        title=f"Calibration, {len(y)} test points",
        xlabel="share of test points that an interval should hold",
        ylabel="share that it holds",
        xlim=(0, 1),
        ylim=(0, 1),
        aspect="equal",
    )
    right.legend(frameon=False)
    figure.savefig(path, dpi=150)
