"""megagp info: what is in a model file."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import megagp
from megagp.cli.predict import feature_names


def info(
    model: Annotated[Path, typer.Argument(help="Model file that `megagp fit` wrote.")],
) -> None:
    """Show what a model file holds.

    [bold]Example[/bold]

    megagp info houses.mgp
    """
    fitted = megagp.load(model)
    table = Table(title=str(model), show_header=False, title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _facts(fitted):
        # Text, because rich would read brackets as markup.
        table.add_row(Text(name), Text(value))
    Console(highlight=False).print(table)


def _facts(fitted: Any) -> Iterator[tuple[str, str]]:
    yield "training points, n", f"{fitted.n_samples_:,}"
    yield "features, d", f"{fitted.n_features_in_:,}"
    names = feature_names(fitted)
    if names is not None:
        yield "feature names", ", ".join(names)
    if "target" in fitted.extra_:
        yield "target", str(fitted.extra_["target"])
    yield "kernel", repr(fitted.kernel_)
    varies = getattr(fitted, "noise_model_", "constant") == "varying"
    typical = ", varies; this is a typical one" if varies else ""
    yield "noise variance", f"{float(fitted.noise_variance_):.6g}{typical}"
    if getattr(fitted, "place_variance_", 0.0):
        yield "variance of effects of single places", f"{float(fitted.place_variance_):.6g}"
    if getattr(fitted, "calibration_", "none") == "local":
        yield "calibration", "variances are multiplied by a factor that varies"
    yield "log marginal likelihood", f"{float(fitted.log_marginal_likelihood_):.6g}"
    yield from _rows("", fitted.diagnostics_)
    if "versions" in fitted.extra_:
        yield "made with", _line(fitted.extra_["versions"])
    yield "read with", f"megagp {version('megagp')}"


def _rows(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Nested JSON as rows, one for each object or list that holds plain values alone."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if name and not any(isinstance(v, dict) for v in inner):
        yield name, _line(value)
    else:
        items = value.items() if isinstance(value, dict) else enumerate(value, start=1)
        for key, part in items:
            yield from _rows(f"{name} {key}".strip(), part)


def _line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_line(part)}" for key, part in value.items())
    if isinstance(value, list):
        return "[" + ", ".join(_line(part) for part in value) + "]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
