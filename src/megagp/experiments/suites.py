"""The paper's tables and figures as lists of runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from megagp.experiments.data import size
from megagp.experiments.run import GAUSSIAN, METHODS, Run

SMALL = ("pol", "elevators", "bike", "kin40k", "protein", "keggdirected", "slice", "keggundirected")
LARGE = ("3droad", "song", "buzz", "houseelectric")
SHARED, ARD = {"ard": False}, {"ard": True}
# The paper's comparison without pretraining.
ADAM: dict[str, Any] = {"training": "adam", "steps": 100, "learning_rate": 0.1}

INDUCING = (16, 32, 64, 128, 256, 512, 1024)
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
# Suites whose runs follow the test error through training.
TRACED = ("fig1", "fig5")


@dataclass(frozen=True)
class Suite:
    """What one table or figure of the paper compares.

    view_of: the suite whose runs it shows, if they are not its own. settings: of the Gaussian
    processes; own: further ones of a method.
    """

    says: str
    datasets: Sequence[str] = (*SMALL, *LARGE)
    methods: Sequence[str] = ("exact", "sgpr", "svgp", "lightgbm")
    seeds: Sequence[int] = (0, 1, 2)
    settings: Mapping[str, Any] = field(default_factory=lambda: SHARED)
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    view_of: str | None = None


SUITES = {
    "table1": Suite("RMSE and NLL, one lengthscale for all inputs"),
    "table2": Suite("times, partitions and kernel evaluations of table1", view_of="table1"),
    "table3": Suite("RMSE and NLL, a lengthscale for each input", settings=ARD),
    "table4": Suite("times of table3", settings=ARD, view_of="table3"),
    "table5": Suite(
        "100 steps of Adam, one lengthscale", methods=("exact", "sgpr", "svgp"), own={"exact": ADAM}
    ),
    "fig1": Suite(
        "pretraining against 100 steps of Adam: test error over time",
        datasets=("kin40k", "protein"),
        methods=("exact", "exact-paper", "exact-adam"),
        seeds=(0,),
    ),
    "fig2": Suite(
        "speed-up over workers: ranks of one thread each",
        datasets=("kin40k", "protein"),
        methods=("exact",),
        seeds=(0,),
    ),
    "fig3": Suite(
        "test error over the number of inducing points",
        datasets=("bike", "protein"),
        methods=("exact", "sgpr", "svgp"),
        seeds=(0,),
    ),
    "fig4": Suite(
        "test error over the number of training points",
        datasets=("kin40k", "keggundirected", "houseelectric"),
        methods=("exact", "sgpr", "svgp"),
        seeds=(0,),
    ),
    "fig5": Suite(
        "test error over up to 100 steps of Adam",
        datasets=("houseelectric",),
        methods=("exact",),
        seeds=(0,),
        own={"exact": ADAM},
    ),
    "smoke": Suite(
        "a minute or two: every method once, on generated data",
        datasets=("robot_arm:2500",),
        methods=("exact", "exact-paper", "sgpr", "svgp", "lightgbm"),
        seeds=(0,),
        settings=ARD,
        own={
            "sgpr": {"inducing_points": 128, "steps": 30},
            "svgp": {"inducing_points": 128, "epochs": 20},
        },
    ),
}


class Point(NamedTuple):
    """Where a run stands in a figure, and what that sets."""

    x: float | None = None
    subset: int | None = None
    settings: Mapping[str, Any] = {}


def runs(
    name: str,
    *,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    subset: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[Run]:
    """The runs of a suite, the first seed of all sets first; None for what the suite has.

    settings: on top of the suite's, for the Gaussian processes.
    """
    if name not in SUITES:
        raise ValueError(f"suite: expected one of {', '.join(SUITES)}, got {name!r}")
    suite = SUITES[name]
    chosen = suite.methods if methods is None else methods
    unknown = [method for method in chosen if method not in METHODS]
    if unknown:
        raise ValueError(f"methods: expected some of {', '.join(METHODS)}, got {unknown[0]!r}")
    return [
        Run(
            suite=suite.view_of or name,
            dataset=dataset,
            method=method,
            seed=seed,
            subset=point.subset,
            settings={**_settings(suite, method), **point.settings, **_given(method, settings)},
            x=point.x,
        )
        for seed in (suite.seeds if seeds is None else seeds)
        for dataset in (suite.datasets if datasets is None else datasets)
        for method in chosen
        for point in _points(name, dataset, method, subset)
    ]


def _settings(suite: Suite, method: str) -> dict[str, Any]:
    shared = suite.settings if method in GAUSSIAN else {}
    return {**shared, **suite.own.get(method, {})}


def _given(method: str, settings: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return settings if settings is not None and method in GAUSSIAN else {}


def _points(name: str, dataset: str, method: str, subset: int | None) -> Iterator[Point]:
    if name == "fig2":
        workers = [w for w in (1, 2, 4, 8, 16) if w <= (os.cpu_count() or 1)]
        yield from (Point(w, subset, {"workers": w}) for w in workers)
    elif name == "fig3" and method in ("sgpr", "svgp"):
        yield from (Point(m, subset, {"inducing_points": m}) for m in INDUCING)
    elif name == "fig4":
        most = 4 * (4 * size(dataset) // 5) // 5
        most = most if subset is None else min(most, subset)
        yield from (Point(n, n) for n in (round(share * most) for share in SHARES))
    elif name == "fig5":
        yield Point(ADAM["steps"], subset)
    else:
        yield Point(None, subset)
