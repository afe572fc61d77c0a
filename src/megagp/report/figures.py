"""Plots across suites: parity with the paper, time, calibration, convergence, lengthscales."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from megagp.report import numerals, paper, power_law
from megagp.report.drawing import INK, Figure, Panel, plot_law, style
from megagp.report.entries import Entry, Number, method_name
from megagp.report.tables import EVIDENCE, SUITES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MODELS = {"table1": "one lengthscale", "table3": "ARD", "table5": "100 steps of Adam"}
DASHES = {"table1": "-", "table3": "--", "table5": ":"}


def overview(entries: list[Entry]) -> list[Figure]:
    """Those for which there is something to draw."""
    made = (parity, times, calibration, convergence, lengthscales)
    return [figure for make in made if (figure := make(entries)).panels]


def parity(entries: list[Entry]) -> Figure:
    """Our mean over the paper's, a point for each data set and method."""
    panels, methods = [], []
    for quantity, name in (("rmse", "RMSE"), ("nll", "NLL")):
        for suite in EVIDENCE:
            points = [
                (entry, ours, theirs)
                for entry in entries
                if entry.suite == suite
                and entry.comparable
                and (ours := entry.number(quantity)) is not None
                and math.isfinite(ours.mean)
                and (theirs := entry.published(quantity)) is not None
            ]
            if points:
                panels.append(_parity_panel(quantity, name, suite, points))
                methods += [entry.method for entry, _, _ in points]
    return Figure(
        "parity",
        "Parity with the paper",
        "Each point is a data set: the paper's mean across, ours upwards, with standard "
        "deviations. Below the line ours is lower, which is better. Names stand at our exact GPs.",
        panels,
        _distinct(methods),
    )


def _parity_panel(
    quantity: str, name: str, suite: str, points: list[tuple[Entry, Number, paper.Value]]
) -> Panel:
    below = sum(ours.mean < theirs.mean for _, ours, theirs in points)

    def draw(ax: Axes) -> None:
        values = [v for _, ours, theirs in points for v in (ours.mean, theirs.mean)]
        if quantity == "rmse":
            low, high = min(values) / 1.4, max(values) * 2.5  # room for names on the right
            ax.set(xscale="log", yscale="log")
        else:
            pad = 0.08 * (max(values) - min(values) or 1)
            low, high = min(values) - pad, max(values) + 4 * pad
        ax.fill_between([low, high], [low, high], low, color=INK, alpha=0.05, lw=0)
        ax.plot([low, high], [low, high], color=INK, lw=0.8)
        for entry, ours, theirs in points:
            color, marker, _ = style(entry.method)
            ax.errorbar(
                theirs.mean,
                ours.mean,
                xerr=theirs.sd or None,
                yerr=ours.sd or None,
                fmt=marker,
                color=color,
                elinewidth=0.7,
                alpha=0.9,
            )
        ax.set(xlabel=f"{name}, paper", ylabel=f"{name}, ours", xlim=(low, high), ylim=(low, high))
        ax.set_aspect("equal")
        name_points(
            ax,
            [
                (entry.dataset, theirs.mean, ours.mean)
                for entry, ours, theirs in points
                if entry.method == "exact"
            ],
        )

    return Panel(
        f"parity-{quantity}-{suite}",
        f"{name}, {MODELS[suite]}",
        f"{name} of {SUITES[suite]}: ours is lower than the paper's in {below} of {len(points)} "
        "points.",
        draw,
        height=3.3,
    )


def name_points(ax: Axes, points: list[tuple[str, float, float]]) -> None:
    """Names to the right below their points, moved down where one would cover another."""
    placed: list[tuple[float, float]] = []
    for name, x, y in sorted(points, key=lambda point: -point[2]):
        across, up = ax.transLimits.transform(ax.transScale.transform((x, y)))
        up -= 0.035
        while any(abs(across - a) < 0.4 and abs(up - u) < 0.042 for a, u in placed):
            up -= 0.01
        placed.append((across, up))
        ax.annotate(
            name,
            (x, y),
            xytext=(across + 0.03, up),
            textcoords="axes fraction",
            va="center",
            fontsize=6.5,
            arrowprops={"arrowstyle": "-", "lw": 0.4, "color": INK, "alpha": 0.6, "shrinkB": 2},
        )


def times(entries: list[Entry]) -> Figure:
    """Seconds over training points, and the slope of a power law through each method's."""
    panels: list[Panel] = []
    methods: list[str] = []
    for suite in EVIDENCE:
        chosen = [entry for entry in entries if entry.suite == suite]
        series: dict[str, list[tuple[float, float]]] = {}
        for entry in chosen:
            n, seconds = entry.number("n_train"), training_seconds(entry)
            if n is not None and seconds is not None and seconds > 0:
                series.setdefault(entry.method, []).append((n.mean, seconds))
        if series:
            panels.append(_times_panel(suite, series))
            methods += series
    return Figure(
        "times",
        "Time and size",
        "Seconds of training and precomputation together, over the number of training points, "
        "on log axes; a point for each data set, subsets included. The lines are least-squares "
        "power laws, seconds ∝ n to the power given; data sets differ in more than n, so that "
        f"the slope is a rough one. Grey rings: the paper's exact GPs. {paper.HARDWARE}",
        panels,
        _distinct(methods),
    )


def training_seconds(entry: Entry) -> float | None:
    """Training and, where there is one, precomputation."""
    train, precompute = entry.number("train"), entry.number("precompute")
    if train is None or not math.isfinite(train.mean):
        return None
    return train.mean + (precompute.mean if precompute and math.isfinite(precompute.mean) else 0.0)


def _times_panel(suite: str, series: dict[str, list[tuple[float, float]]]) -> Panel:
    laws = {
        method: power_law.fit([n for n, _ in points], [s for _, s in points])
        for method, points in series.items()
    }
    said = [f"{method_name(m)} {law.slope:.2f}" for m, law in laws.items() if law]

    def draw(ax: Axes) -> None:
        ax.set(xscale="log", yscale="log", xlabel="training points n", ylabel="seconds")
        published = _published_times(suite)
        ax.plot(*zip(*published, strict=True), "o", mfc="none", mec=INK, alpha=0.45, zorder=1)
        for method, points in series.items():
            plot_law(ax, method, points, laws[method])
        if any(laws.values()):
            ax.legend(loc="upper left", ncols=2, handlelength=1, columnspacing=1)

    return Panel(
        f"times-{suite}",
        MODELS[suite],
        f"Training time over n, {SUITES[suite]}. Fitted powers of n: {', '.join(said) or 'none'}.",
        draw,
        height=3.2,
    )


def _published_times(suite: str) -> list[tuple[float, float]]:
    timed = {"table1": "table2", "table3": "table4", "table5": "table5"}[suite]
    found = []
    for dataset, known in paper.DATASETS.items():
        train = paper.published(timed, "train", dataset, "exact")
        before = paper.published(timed, "precompute", dataset, "exact")
        if train is not None:
            found.append((float(known.n), train.mean + (before.mean if before else 0.0)))
    return found


def calibration(entries: list[Entry]) -> Figure:
    """Observed over nominal coverage, a panel for each data set and model."""
    chosen = [
        entry
        for entry in entries
        if entry.suite in ("table1", "table3") and any(run.calibration for run in entry.done)
    ]
    panels = []
    for dataset, suite in dict.fromkeys((e.dataset, e.suite) for e in chosen):
        members = [e for e in chosen if (e.dataset, e.suite) == (dataset, suite)]
        panels.append(_calibration_panel(members))
    return Figure(
        "calibration",
        "Calibration",
        "The share of test points within the central interval of a given probability, over that "
        "probability; means over seeds. On the line intervals hold what they promise; below it "
        "they are too narrow.",
        panels,
        _distinct(entry.method for entry in chosen),
    )


def _calibration_panel(members: list[Entry]) -> Panel:
    first = members[0]

    def draw(ax: Axes) -> None:
        ax.plot([0, 1], [0, 1], color=INK, lw=0.8)
        for entry in members:
            color, marker, _ = style(entry.method)
            curve = mean_curve([run.calibration for run in entry.done])
            ax.plot(*zip(*curve, strict=True), color=color, marker=marker, ms=3, lw=1, markevery=4)
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="nominal", ylabel="observed")
        ax.set_aspect("equal")

    held = [
        f"{method_name(e.method)} {numerals.share(e.number('coverage'))}"
        for e in members
        if e.number("coverage") is not None
    ]
    return Panel(
        f"calibration-{first.dataset}-{first.suite}",
        f"{_place(first)}, {MODELS[first.suite]}",
        f"Calibration on {_place(first)}, {SUITES[first.suite]}. "
        f"Within the 95 % interval: {', '.join(held) or 'not recorded'}.",
        draw,
        width=2.6,
        height=2.45,
    )


def mean_curve(curves: list[list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """The mean of observed values at each nominal one."""
    found: dict[float, list[float]] = {}
    for nominal, observed in (pair for curve in curves for pair in curve):
        found.setdefault(nominal, []).append(observed)
    return [(nominal, sum(values) / len(values)) for nominal, values in sorted(found.items())]


def _by_place(chosen: list[Entry], panel: Callable[[str, list[Entry]], Panel]) -> list[Panel]:
    """A panel for each data set, of the entries that are of it."""
    places = dict.fromkeys(_place(entry) for entry in chosen)
    return [panel(place, [e for e in chosen if _place(e) == place]) for place in places]


def convergence(entries: list[Entry]) -> Figure:
    """Residual over iterations of the solve behind predictions, a panel for each data set."""
    chosen = [
        entry
        for entry in entries
        if entry.suite in EVIDENCE and any(run.residuals for run in entry.done)
    ]
    panels = _by_place(chosen, _convergence_panel)
    return Figure(
        "convergence",
        "Convergence of conjugate gradients",
        "Relative residual ‖y − K̂v‖ / ‖y‖ after each iteration of the solve for the mean that "
        "predictions use, a line for each seed. Solid: one lengthscale; dashed: ARD; dotted: 100 "
        "steps of Adam.",
        panels,
        _distinct(entry.method for entry in chosen),
    )


def _convergence_panel(place: str, members: list[Entry]) -> Panel:
    runs = [(entry, run) for entry in members for run in entry.done if run.residuals]
    most = max(len(run.residuals) for _, run in runs)

    def draw(ax: Axes) -> None:
        for entry, run in runs:
            color, marker, _ = style(entry.method)
            kept = [(i, r) for i, r in enumerate(run.residuals) if r > 0 and math.isfinite(r)]
            if kept:
                (line,) = ax.plot(*zip(*kept, strict=True), color=color, lw=1)
                # The marker at the end tells methods apart without colour.
                line.set(ls=DASHES[entry.suite], marker=marker, ms=4, markevery=[-1])
        ax.set(yscale="log", xlabel="iteration", ylabel="relative residual")

    return Panel(
        f"convergence-{place}",
        place,
        f"Residual over iterations on {place}: {len(runs)} solves of at most {most} residuals.",
        draw,
        width=2.6,
        height=2.4,
    )


def lengthscales(entries: list[Entry]) -> Figure:
    """Learned lengthscales of each input (ARD), a panel for each data set."""
    chosen = [
        entry
        for entry in entries
        if entry.suite == "table3"
        and paper.family(entry.method) == "exact"
        and any(len(run.lengthscale) > 1 for run in entry.done)
    ]
    panels = _by_place(chosen, _lengthscale_panel)
    return Figure(
        "lengthscales",
        "Learned lengthscales",
        "One lengthscale for each input, in standard deviations of that input (of its scores, "
        "where inputs count by rank), a point for each seed. The shorter, the more the prediction "
        "depends on the input; far above 1 an input hardly matters.",
        panels,
        _distinct(entry.method for entry in chosen),
    )


def _lengthscale_panel(place: str, members: list[Entry]) -> Panel:
    runs = [(entry, run) for entry in members for run in entry.done if len(run.lengthscale) > 1]
    shortest = min(range(len(runs[0][1].lengthscale)), key=lambda i: runs[0][1].lengthscale[i])

    def draw(ax: Axes) -> None:
        ax.axhline(1, color=INK, lw=0.8)
        kinds = _distinct(entry.method for entry, _ in runs)
        for entry, run in runs:
            color, marker, _ = style(entry.method)
            shift = 0.25 * (kinds.index(entry.method) - (len(kinds) - 1) / 2)
            where = [i + 1 + shift for i in range(len(run.lengthscale))]
            ax.plot(where, run.lengthscale, marker, color=color, ms=3, alpha=0.75)
        ax.set(yscale="log", xlabel="input", ylabel="lengthscale")
        ax.grid(axis="x", visible=False)
        ax.locator_params(axis="x", integer=True)

    return Panel(
        f"lengthscales-{place}",
        place,
        f"Learned lengthscales on {place}: the shortest is that of input {shortest + 1}.",
        draw,
        width=2.6,
        height=2.4,
    )


def _place(entry: Entry) -> str:
    return entry.dataset if entry.subset is None else f"{entry.dataset}, subset {entry.subset:,}"


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
