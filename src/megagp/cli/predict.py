"""megagp predict: from a model and new rows to means and standard deviations."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

import megagp
from megagp import tables
from megagp.cli.reporting import note


def predict(
    model: Annotated[Path, typer.Argument(help="Model file that `megagp fit` wrote.")],
    data: Annotated[Path, typer.Argument(help="New rows: .csv, .csv.gz, .parquet, .npz.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Table to write: columns mean and std.")
    ],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say only what is wrong.")] = False,
) -> None:
    """Predict the target for new rows, with its standard deviation.

    Columns are matched by name, in any order. Rows are read, predicted and written in chunks.

    [bold]Examples[/bold]

    megagp predict houses.mgp new.csv -o prices.csv

    megagp predict houses.mgp new.parquet -o prices.parquet
    """
    first = megagp.distributed.is_first()
    say = note if first and not quiet else (lambda message: None)
    fitted = megagp.load(model)
    names = _columns(fitted, data, say)
    rows = 0
    # Under torchrun every rank predicts its part of each chunk, and rank 0 writes.
    writer = tables.Writer(output, ["mean", "std"]) if first else nullcontext()
    with writer as out:
        for X in tables.chunks(data, names):
            mean, std = fitted.predict(X, return_std=True)
            if mean.ndim != 1:
                raise ValueError(
                    f"{model}: expected a model of one target, got one of {mean.shape[1]}; "
                    "predict with it in Python"
                )
            if out is not None:
                out.write(mean, std)
            rows += len(X)
    say(f"wrote {output}: {rows} rows")


def _columns(fitted: Any, data: Path, say: Any) -> list[str]:
    """The columns of the table in the order of the model's features."""
    names = tables.column_names(data)
    wanted = feature_names(fitted)
    if wanted is None:
        if len(names) != fitted.n_features_in_:
            raise tables.TableError(
                f"{data}: expected {fitted.n_features_in_} columns, as the model has that many "
                f"features and no names for them, got {len(names)}: {', '.join(names)}"
            )
        say("the model has no names for its features: columns are taken in their order")
        return names
    absent = [name for name in wanted if name not in names]
    if absent:
        raise tables.TableError(
            f"{data}: expected the columns that the model was trained on, got none named "
            f"{', '.join(absent)}; the table has {', '.join(names)}"
        )
    target = fitted.extra_.get("target")
    extra = [name for name in names if name not in wanted]
    if target in extra:
        say(f"column {target!r} is the model's target: ignored")
    others = [name for name in extra if name != target]
    if others:
        say(f"not features of the model, ignored: {', '.join(others)}")
    return wanted


def feature_names(fitted: Any) -> list[str] | None:
    """What the features were called in training, if anything."""
    names = fitted.extra_.get("features")
    if names is None:
        names = getattr(fitted, "feature_names_in_", None)
        return None if names is None else [str(name) for name in names]
    # `extra` is what whoever saved the model put there.
    d = fitted.n_features_in_
    listed = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not listed or len(names) != d:
        raise ValueError(
            f"model file: expected extra.features to be a list of {d} names, got {names!r:.60}; "
            "fit the model again, or save it without"
        )
    return list(names)
