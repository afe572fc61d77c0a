"""megagp fit: from a table to a model file."""

from __future__ import annotations

import platform
import time
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import megagp
from megagp.cli.reporting import note
from megagp.scores import score
from megagp.tables import read_target


class KernelName(str, Enum):
    matern12 = "matern12"
    matern32 = "matern32"
    matern52 = "matern52"
    rbf = "rbf"
    rq = "rq"


class MethodName(str, Enum):
    exact = "exact"
    sgpr = "sgpr"
    svgp = "svgp"


class MeanName(str, Enum):
    constant = "constant"
    linear = "linear"


class QualityName(str, Enum):
    usual = "usual"
    best = "best"


REGRESSORS = {"exact": "GPRegressor", "sgpr": "SGPRegressor", "svgp": "SVGPRegressor"}
CLASSES = {"matern12": "Matern12", "matern52": "Matern52", "rbf": "RBF", "rq": "RationalQuadratic"}


def fit(
    data: Annotated[Path, typer.Argument(help="Training table: .csv, .csv.gz, .parquet, .npz.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.")],
    target: Annotated[str, typer.Option(help="Column to predict; all others are features.")] = "y",
    method: Annotated[
        MethodName, typer.Option(help="Exact, or an approximation with inducing points.")
    ] = MethodName.exact,
    inducing_points: Annotated[
        int | None, typer.Option(min=1, help="How many, for sgpr and svgp.")
    ] = None,
    ard: Annotated[bool, typer.Option(help="One lengthscale per feature, or one for all.")] = True,
    kernel: Annotated[KernelName, typer.Option(help="Kernel.")] = KernelName.matern32,
    quality: Annotated[
        QualityName, typer.Option(help="best: a richer kernel, noise that may vary, more time.")
    ] = QualityName.usual,
    mean: Annotated[MeanName, typer.Option(help="Prior mean.")] = MeanName.constant,
    random_state: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    test_fraction: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Share of rows to hold out and score.")
    ] = 0.0,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder from which the same command takes up again.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Under torchrun: seconds to wait for other ranks.")
    ] = 600.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say only what is wrong.")] = False,
) -> None:
    """Fit a Gaussian process to a table and save it.

    Under torchrun the ranks share the work; rank 0 reads, writes and speaks.

    [bold]Examples[/bold]

    megagp fit houses.csv --target price -o houses.mgp

    megagp fit houses.parquet --target price --test-fraction 0.1 --mean linear -o houses.mgp

    megagp fit houses.csv --target price --method sgpr --inducing-points 1000 -o houses.mgp

    torchrun --nproc-per-node=4 -m megagp fit houses.csv --target price -o houses.mgp
    """
    # Here, not on top: torch takes seconds, and --help needs none of it.
    import torch

    from megagp import distributed

    ranks = distributed.join(timeout)
    say = note if ranks.first and not quiet else (lambda message: None)

    def read() -> tuple[dict[str, Any], dict[str, Any]]:
        if output.is_dir() or not output.parent.is_dir():
            raise ValueError(
                f"{output}: expected a file name in a folder that exists; create it first"
            )
        X, y, features = read_target(data, target)
        tensors = {"X": torch.from_numpy(X.copy()), "y": torch.from_numpy(y.copy())}
        return {"features": features}, tensors

    header, tensors = ranks.from_first(read)
    X, y, features = tensors["X"].numpy(), tensors["y"].numpy(), header["features"]
    say(f"read {len(X)} rows, {len(features)} features")
    train, test = _hold_out(len(X), test_fraction, random_state)
    start = time.perf_counter()
    model = getattr(megagp, REGRESSORS[method.value])(
        **_own_options(method, inducing_points, checkpoint, quality),
        kernel=_kernel(kernel.value, len(features) if ard else None),
        ard=ard,
        mean=mean.value,
        random_state=random_state,
        verbose=0 if quiet else 1,
    ).fit(X[train], y[train])
    say(f"fitted {len(train)} rows in {time.perf_counter() - start:.1f} s")
    model.save(output, extra=_provenance(features, target))
    if ranks.first:
        say(f"wrote {output} ({output.stat().st_size / 1e6:.3g} MB)")
    if len(test):
        scores = score(y[test], *model.predict(X[test], return_std=True))
        if ranks.first:
            typer.echo(f"{len(test)} rows held out: {scores}")


def _own_options(
    method: MethodName, inducing_points: int | None, checkpoint: Path | None, quality: QualityName
) -> dict[str, Any]:
    """Options that not all methods have, where they were given."""
    exact = method is MethodName.exact
    if inducing_points is not None and exact:
        raise ValueError(
            f"--inducing-points: expected with --method sgpr or svgp, got {inducing_points} with "
            "exact; leave it out"
        )
    if checkpoint is not None and not exact:
        raise ValueError(
            f"--checkpoint: expected with --method exact, got {checkpoint} with {method.value}; "
            "leave it out"
        )
    if quality is not QualityName.usual and not exact:
        raise ValueError(
            f"--quality: expected with --method exact, got {quality.value} with {method.value}; "
            "leave it out"
        )
    given: dict[str, Any] = {"inducing_points": inducing_points, "checkpoint": checkpoint}
    if exact:
        given["quality"] = quality.value
    return {name: value for name, value in given.items() if value is not None}


def _hold_out(n: int, fraction: float, random_state: int) -> tuple[Any, Any]:
    """Rows to train on and rows to score, in the table's order."""
    size = round(fraction * n)
    if size >= n:
        raise ValueError(f"--test-fraction: expected rows to train on, got {n - size} of {n}")
    order = np.random.default_rng(random_state).permutation(n)
    return np.sort(order[size:]), np.sort(order[:size])


def _kernel(name: str, lengthscales: int | None) -> Any:
    """None for the estimator's own, Matérn-3/2."""
    if name not in CLASSES:
        return None
    lengthscale = 1.0 if lengthscales is None else [1.0] * lengthscales
    return getattr(megagp.kernels, CLASSES[name])(lengthscale)


def _provenance(features: list[str], target: str) -> dict[str, Any]:
    packages = ("megagp", "torch", "numpy")
    versions = {"python": platform.python_version()} | {name: version(name) for name in packages}
    return {"features": features, "target": target, "versions": versions}
