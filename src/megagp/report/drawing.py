"""Pictures: panels that draw themselves on axes, one by one for the page or together for a file."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megagp.report.entries import method_name
from megagp.report.power_law import PowerLaw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Method: colour that shows on white and on black, marker, and the same marker as a character.
STYLES = {
    "exact": ("#2f7fc1", "o", "●"),
    "exact-best": ("#12967a", "v", "▼"),
    "exact-paper": ("#8a68c8", "x", "×"),
    "exact-adam": ("#b8860b", "P", "✚"),
    "sgpr": ("#d9722a", "s", "■"),
    "svgp": ("#c74886", "^", "▲"),
    "lightgbm": ("#6d8f1f", "D", "◆"),
}
OTHER = ("#7f7f7f", "*", "★")
INK = "#212529"  # on a page it becomes the colour of its text
SETTINGS: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.formatter.use_mathtext": False,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.unicode_minus": True,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.family": "sans-serif",
    "font.size": 8.5,
    "grid.color": INK,
    "grid.alpha": 0.13,
    "grid.linewidth": 0.6,
    "axes.grid": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "text.color": INK,
    "text.usetex": False,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
}
ACROSS = 3  # panels beside one another in a file
LETTERS = 11  # of a title, to the inch


@dataclass(frozen=True)
class Panel:
    """`draw` fills the axes; `alt` says in words what is to be seen."""

    name: str
    title: str
    alt: str
    draw: Callable[[Axes], None]
    width: float = 3.4
    height: float = 2.7


@dataclass(frozen=True)
class Figure:
    """Panels under one caption; `methods` are those whose markers need explaining."""

    key: str
    title: str
    caption: str
    panels: list[Panel]
    methods: list[str]


def style(method: str) -> tuple[str, str, str]:
    return STYLES.get(method, OTHER)


def plot_law(
    ax: Axes, method: str, points: list[tuple[float, float]], law: PowerLaw | None
) -> None:
    """Points of a method, and the power law through them if there is one."""
    color, marker, _ = style(method)
    label = None if law is None else f"n^{law.slope:.2f}"
    ax.plot(*zip(*points, strict=True), marker, color=color, label=label)
    if law is not None:
        ends = [min(x for x, _ in points), max(x for x, _ in points)]
        ax.plot(ends, [law(x) for x in ends], color=color, lw=1)


def require() -> None:
    """RuntimeError in one sentence without matplotlib."""
    try:
        import matplotlib  # noqa: F401  (an optional dependency)
    except ModuleNotFoundError:
        raise RuntimeError(
            "the report's plots need matplotlib, which is not installed: "
            "pip install 'megagp[report]', or write tables alone with --markdown or --latex"
        ) from None


def inline_svg(panel: Panel) -> str:
    """The panel, without its title, as an <svg> of a page: text is text, ink the page's."""
    text = _render([panel], "svg", panel.name).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Ids are of the page now; every panel has its own.
    safe = re.sub(r"[^A-Za-z0-9]+", "-", panel.name)
    text = re.sub(r'\bid="', f'id="{safe}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{safe}-", text)
    text = text.replace(INK, "currentColor")
    text = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", text, count=1)
    text = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", text, count=1)
    label = panel.alt.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def save(figure: Figure, path: Path) -> None:
    """All panels in one file, .svg or .png by its name, on white."""
    kind = path.suffix[1:]
    path.write_bytes(_render(figure.panels, kind, figure.key, figure.methods, titled=True))


def _render(
    panels: list[Panel],
    kind: str,
    salt: str,
    methods: list[str] | None = None,
    *,
    titled: bool = False,
) -> bytes:
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    across = min(ACROSS, len(panels))
    down = math.ceil(len(panels) / across)
    size = (across * max(p.width for p in panels), down * max(p.height for p in panels))
    # The salt makes the ids, and so the file, the same for the same data.
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": salt}):
        extra = 0.3 if methods else 0.0
        canvas = Canvas(figsize=(size[0], size[1] + extra), layout="constrained")
        axes = canvas.subplots(down, across, squeeze=False).ravel()
        for panel, ax in zip(panels, axes, strict=False):
            if titled:
                ax.set_title(textwrap.fill(panel.title, int(LETTERS * panel.width)))
            panel.draw(ax)
            _label_logarithms(ax)
        for ax in axes[len(panels) :]:
            ax.set_axis_off()
        if methods:
            _explain(canvas, methods)
        out = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        color = "white" if titled else "none"
        canvas.savefig(out, format=kind, dpi=160, metadata=metadata, facecolor=color)
    return out.getvalue()


def _label_logarithms(ax: Axes) -> None:
    """Round numbers in plain text on log axes, as many as there is room for."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    for axis in (ax.xaxis, ax.yaxis):
        if axis.get_scale() != "log":
            continue
        low, high = axis.get_view_interval()
        decades = math.log10(high / low)
        subs = (1.0, 2.0, 5.0) if decades < 1.5 else (1.0, 3.0) if decades < 3 else (1.0,)
        axis.set_major_locator(LogLocator(subs=subs))
        axis.set_major_formatter(FuncFormatter(lambda value, _: power_label(value)))
        axis.set_minor_locator(NullLocator())


def power_label(value: float) -> str:
    """0.02, 500, 20k, 3M, 1e−5."""
    for size, unit in ((1e6, "M"), (1e4, "k")):
        if size <= value < 1e9:
            return f"{value / (1e6 if unit == 'M' else 1e3):.4g}{unit}"
    if 1e-3 <= value < 1e9:
        return f"{value:.4g}"
    exponent = math.floor(math.log10(value) + 1e-9)
    return f"{value / 10.0**exponent:.0f}e{exponent}".replace("-", "\u2212")


def _explain(canvas: Any, methods: list[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=style(m)[0], marker=style(m)[1], label=method_name(m)) for m in methods
    ]
    canvas.legend(handles=handles, loc="outside upper left", ncols=len(handles))
