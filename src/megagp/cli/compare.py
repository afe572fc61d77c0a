"""megagp compare: exact and approximate methods on the same rows of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import megagp
from megagp.cli.fit import MethodName
from megagp.cli.reporting import note
from megagp.tables import read_target


def compare(
    data: Annotated[Path, typer.Argument(help="Table: .csv, .csv.gz, .parquet, .npz.")],
    target: Annotated[str, typer.Option(help="Column to predict; all others are features.")] = "y",
    method: Annotated[
        list[MethodName] | None, typer.Option(help="One to compare; give it several times.")
    ] = None,
    test_fraction: Annotated[
        float, typer.Option(min=0.01, max=0.9, help="Share of rows to hold out and score.")
    ] = 0.2,
    random_state: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say only what is wrong.")] = False,
) -> None:
    """Fit several methods to a table, and score them on rows that were held out.

    [bold]Examples[/bold]

    megagp compare houses.csv --target price

    megagp compare houses.csv --target price --method exact --method sgpr
    """
    X, y, features = read_target(data, target)
    if not quiet:
        note(f"read {len(X)} rows, {len(features)} features")
    chosen = [m.value for m in method or list(MethodName)]
    found = megagp.compare(
        X,
        y,
        chosen,
        test_fraction=test_fraction,
        random_state=random_state,
        verbose=0 if quiet else 1,
    )
    typer.echo(str(found))
