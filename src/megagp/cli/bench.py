"""megagp bench: the paper's experiments, from where they were left off."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from megagp.experiments import METHODS, SUITES, Record, Results, Run, runs
from megagp.progress import clock


def bench(
    suite: Annotated[str, typer.Argument(help=f"One of {', '.join(SUITES)}.")],
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Data sets, comma separated: names of the paper's, FILE:TARGET, robot_arm:POINTS."
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help=f"Comma separated, of {', '.join(METHODS)}.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Of splits and fits, comma separated.")] = None,
    subset: Annotated[int | None, typer.Option(min=10, help="Training points at most.")] = None,
    budget: Annotated[
        float | None, typer.Option(min=1, help="Seconds after which a run counts as failed.")
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="Setting of the estimators, name=value; may be repeated."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of results.")] = Path(
        "results"
    ),
    retry: Annotated[bool, typer.Option(help="Try failed runs again.")] = False,
    show: Annotated[bool, typer.Option("--list", help="Say what would run, and stop.")] = False,
) -> None:
    """Run one of the paper's tables or figures, each run in a process of its own.

    Every run is a line in <output>/<suite>.jsonl; runs that are there are not made again, so the
    same command goes on where it was stopped. table2 and table4 show the runs of table1 and
    table3. Sets come from the folder MEGAGP_DATA, or are downloaded into the user's cache.

    [bold]Examples[/bold]

    megagp bench smoke

    megagp bench table1 --data pol,bike --methods exact,sgpr --seeds 0

    megagp bench table3 --data houses.csv:price --set mean=linear --budget 3600
    """
    # Here, not on top: torch takes seconds, and --help needs none of it.
    from megagp.experiments.bench import make, pending

    chosen = runs(
        suite,
        datasets=_parts(data),
        methods=_parts(methods),
        seeds=_seeds(seeds),
        subset=subset,
        settings=_settings(setting or []),
    )
    todo = pending(chosen, output, retry=retry)
    if show:
        for run in todo:
            typer.echo(str(run))
        typer.echo(f"{len(todo)} of {len(chosen)} runs to make")
        return
    screen = _Screen(len(todo))
    screen.say(f"{suite}: {SUITES[suite].says}; {len(todo)} of {len(chosen)} runs to make")
    try:
        make(todo, output, budget=budget, retry=retry, listen=screen)
    finally:
        screen.close()
    found = {name: Results(output, name).read() for name in {run.suite for run in chosen}}
    records = [found[run.suite].get(run.key) for run in chosen]
    Console(width=None if sys.stdout.isatty() else 120).print(
        summary(suite, [record for record in records if record is not None])
    )


class _Screen:
    """A line for each run on stderr, and what is running now."""

    def __init__(self, total: int) -> None:
        self.console = Console(file=sys.stderr, highlight=False)
        self.total = total
        self._shown = ExitStack()

    def say(self, line: str) -> None:
        self.console.print(f"megagp: {line}", soft_wrap=True, markup=False)

    def __call__(self, number: int, run: Run, record: Record | None) -> None:
        place = f"[{number}/{self.total}] {run}"
        self.close()
        if record is not None:
            self.say(f"{place}: {outcome(record)}")
        elif self.console.is_terminal:
            self._shown.enter_context(self.console.status(place.replace("[", "\\[")))
        else:
            self.say(f"{place} ...")

    def close(self) -> None:
        self._shown.close()


def outcome(record: Record) -> str:
    """A record in a few words."""
    if record["status"] != "done":
        return f"{record['status']}: {record['reason']}"
    spent = sum(record["seconds"].values())
    scores = f"RMSE {record['rmse']:.4g}, NLL {record['nll']:.4g}"
    unsure = len(record["warnings"])
    return f"{scores}, {clock(spent)}" + (f", {unsure} warnings" if unsure else "")


def summary(title: str, records: Sequence[Record]) -> Table:
    """Mean ± standard deviation over the seeds of each set, method and setting."""
    table = Table(title=f"{title}: {SUITES[title].says}")
    for name in ("data", "method", "n", "RMSE", "NLL", "train", "precompute", "1,000 new", "runs"):
        table.add_column(name, justify="left" if name in ("data", "method") else "right")
    groups: dict[str, list[Record]] = {}
    for record in records:
        same = [record["dataset"], record["method"], record["subset"], record["settings"]]
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(record)
    for group in groups.values():
        first, done = group[0], [record for record in group if record["status"] == "done"]
        count = str(len(done)) if len(done) == len(group) else f"{len(done)} of {len(group)}"
        x = "" if first["x"] is None else f" ({first['x']:g})"
        cells = ["", "", "", "", "", ""]
        if done:
            times = [_mean(r["seconds"][part] for r in done) for part in PARTS]
            cells = [
                f"{done[0]['n_train']:,}",
                *(_spread([r[name] for r in done]) for name in ("rmse", "nll")),
                *(f"{t:.3g} s" for t in times),
            ]
        table.add_row(first["dataset"], first["method"] + x, *cells, count)
    return table


PARTS = ("train", "precompute", "predict")


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


def _spread(values: Sequence[float]) -> str:
    mean = f"{statistics.fmean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.3f}"


def _parts(given: str | Sequence[str] | None) -> list[str] | None:
    """Comma separated, in one option or several."""
    if given is None:
        return None
    several = [given] if isinstance(given, str) else given
    return [part.strip() for text in several for part in text.split(",") if part.strip()]


def _seeds(given: str | None) -> list[int] | None:
    parts = _parts(given)
    if parts is None:
        return None
    wrong = [part for part in parts if not part.isdecimal()]
    if wrong:
        raise ValueError(f"--seeds: expected whole numbers, as 0,1,2, got {wrong[0]!r}")
    return [int(part) for part in parts]


def _settings(given: Sequence[str]) -> dict[str, Any]:
    """name=value, the value as JSON has it or else a word."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (equals and name.isidentifier()):
            raise ValueError(f"--set: expected name=value, as mean=linear, got {text!r}")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found
