"""The paper's figures 1 to 5: test error and time over something that grows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from megagp.report import power_law
from megagp.report.drawing import INK, Figure, Panel, plot_law, style
from megagp.report.entries import Entry, method_name
from megagp.report.figures import training_seconds
from megagp.report.tables import SUITES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point = tuple[float, float]
CAPTIONS = {
    "fig1": "Test RMSE over seconds of training, had training stopped there: the paper's recipe "
    "and ours, which start on subsets, against 100 steps of Adam on all points. A line for each "
    "seed.",
    "fig2": "Training time with one worker divided by that with several, a worker being one "
    "process on one core. The line is a perfect speed-up.",
    "fig3": "Test RMSE of the approximations over their number of inducing points m; the "
    "horizontal line is the exact GP, which has none.",
    "fig4": "Test RMSE over the number n of training points, all tested on the same points; and "
    "seconds of training and precomputation, with fitted powers of n.",
    "fig5": "Test RMSE over steps of Adam on all training points, had training stopped there.",
}


def figure(entries: list[Entry], suite: str) -> Figure | None:
    """The suite's figure, a panel or two for each data set; None without a run that is done."""
    if suite not in CAPTIONS:
        return None
    chosen = [entry for entry in entries if entry.suite == suite and entry.done]
    panels = []
    for place in dict.fromkeys(_place(entry) for entry in chosen):
        members = [entry for entry in chosen if _place(entry) == place]
        panels += _panels(suite, place, members)
    if not panels:
        return None
    methods = list(dict.fromkeys(entry.method for entry in chosen))
    return Figure(suite, SUITES[suite], CAPTIONS[suite], panels, methods)


def _panels(suite: str, place: str, members: list[Entry]) -> list[Panel]:
    if suite in ("fig1", "fig5"):
        over = "seconds" if suite == "fig1" else "step"
        lines = [
            (entry.method, [(p[over], p["rmse"]) for p in run.trace if {over, "rmse"} <= set(p)])
            for entry in members
            for run in entry.done
        ]
        name = "seconds of training" if suite == "fig1" else "steps of Adam"
        return _lines_panel(suite, place, lines, name, "test RMSE", log_x=suite == "fig1")
    if suite == "fig2":
        return _speed_up(place, members)
    scores = _over_x(members, "rmse")
    name = "inducing points m" if suite == "fig3" else "training points n"
    panels = _lines_panel(suite, place, scores, name, "test RMSE", log_x=True)
    if suite == "fig3" and panels:
        return [_with_levels(panels[0], members)]
    return panels + (_growth(place, members) if suite == "fig4" else [])


def _lines_panel(
    suite: str,
    place: str,
    lines: list[tuple[str, list[Point]]],
    x: str,
    y: str,
    *,
    log_x: bool,
) -> list[Panel]:
    lines = [(m, points) for m, points in lines if points]
    if not lines:
        return []

    def draw(ax: Axes) -> None:
        for method, points in lines:
            color, marker, _ = style(method)
            ax.plot(*zip(*points, strict=True), color=color, marker=marker, ms=3.5, lw=1.2)
        ax.set(xlabel=x, ylabel=y)
        if log_x:
            ax.set_xscale("log")

    ends = [f"{method_name(m)} {points[-1][1]:.3g}" for m, points in lines]
    alt = f"{y} over {x} on {place}. At the end of each line: {', '.join(ends)}."
    return [Panel(f"{suite}-{place}", place, alt, draw)]


def _with_levels(panel: Panel, members: list[Entry]) -> Panel:
    """The panel with horizontal lines for entries that have no x."""
    levels = [
        (entry.method, value.mean)
        for entry in members
        if entry.x is None
        and (value := entry.number("rmse")) is not None
        and math.isfinite(value.mean)
    ]

    def draw(ax: Axes) -> None:
        panel.draw(ax)
        for method, level in levels:
            ax.axhline(level, color=style(method)[0])

    said = "".join(f" {method_name(m)}: {level:.3g}." for m, level in levels)
    return Panel(panel.name, panel.title, panel.alt + said, draw)


def _speed_up(place: str, members: list[Entry]) -> list[Panel]:
    lines = []
    for method, points in _over_x(members, "train"):
        alone = dict(points).get(1.0)
        if alone:
            lines.append((method, [(x, alone / seconds) for x, seconds in points if seconds > 0]))
    panels = _lines_panel("fig2", place, lines, "workers", "speed-up", log_x=False)
    if not panels:
        return []
    (panel,) = panels
    most = max(x for _, points in lines for x, _ in points)

    def draw(ax: Axes) -> None:
        ax.plot([1, most], [1, most], color=INK, lw=0.8)
        panel.draw(ax)
        ax.set_xticks(sorted({x for _, points in lines for x, _ in points}))
        ax.set_ylim(bottom=0)

    return [Panel(panel.name, panel.title, panel.alt, draw)]


def _growth(place: str, members: list[Entry]) -> list[Panel]:
    """Seconds over n, with the slope of each method."""
    series: dict[str, list[Point]] = {}
    for entry in members:
        seconds = training_seconds(entry)
        if entry.x is not None and seconds:
            series.setdefault(entry.method, []).append((entry.x, seconds))
    if not series:
        return []
    laws = {m: power_law.fit([x for x, _ in p], [s for _, s in p]) for m, p in series.items()}

    def draw(ax: Axes) -> None:
        for method, points in series.items():
            plot_law(ax, method, points, laws[method])
        ax.set(xscale="log", yscale="log", xlabel="training points n", ylabel="seconds")
        if any(laws.values()):
            ax.legend(loc="upper left", handlelength=1)

    said = ", ".join(f"{method_name(m)} {law.slope:.2f}" for m, law in laws.items() if law)
    alt = f"Training time over n on {place}. Fitted powers of n: {said or 'none'}."
    return [Panel(f"fig4-time-{place}", f"{place}, time", alt, draw)]


def _over_x(members: list[Entry], quantity: str) -> list[tuple[str, list[Point]]]:
    """For each method its means over x, in order."""
    series: dict[str, list[Point]] = {}
    for entry in sorted(members, key=lambda e: e.x or 0.0):
        value = entry.number(quantity)
        if entry.x is not None and value is not None and math.isfinite(value.mean):
            series.setdefault(entry.method, []).append((entry.x, value.mean))
    return list(series.items())


def _place(entry: Entry) -> str:
    """The data set; a subset has its own panel unless it is a point of a series over n."""
    if entry.subset is None or entry.subset == entry.x:
        return entry.dataset
    return f"{entry.dataset}, subset {entry.subset:,}"
