"""The commands under one name, and what `megagp` itself answers."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from megagp.cli.bench import bench
from megagp.cli.compare import compare
from megagp.cli.demo import demo
from megagp.cli.fit import fit
from megagp.cli.info import info
from megagp.cli.plan import plan
from megagp.cli.predict import predict
from megagp.cli.report import report
from megagp.cli.reporting import one_line_errors

app = typer.Typer(
    name="megagp",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Try it: megagp demo --n 5000",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"megagp {version('megagp')}")
        raise typer.Exit


@app.callback()
def megagp(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    """Exact Gaussian-process regression for data that has outgrown Cholesky.

    Tables may be .csv, .csv.gz, .parquet, or .npz with arrays X and y.
    """


for command in (fit, predict, info, compare, demo, plan, bench, report):
    app.command()(one_line_errors(command))


def main() -> None:
    app()
