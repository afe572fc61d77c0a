"""The report as one HTML page that needs nothing but itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from megagp.report import drawing, paper
from megagp.report.definitions import CITATION, DEFINITIONS
from megagp.report.entries import Entry, Verdict, method_name
from megagp.report.markdown import SYMBOLS
from megagp.report.problems import absent, problems
from megagp.report.records import Run
from megagp.report.report import TITLE, Report, Section
from megagp.report.tables import Table

TEMPLATE = Path(__file__).with_name("page.html.jinja")
SAYS = {
    Verdict.BETTER: "better than the paper",
    Verdict.EVEN: "even with the paper",
    Verdict.WORSE: "worse than the paper",
}
WORDS = ("method", "quantity")  # columns of words; the others are of numbers
SMALL = 3.0  # inches: panels below this go four to a row
TALL = 24  # rows: a table that starts on a page of its own in print


class Key(NamedTuple):
    """A method in a figure's legend."""

    name: str
    color: str
    symbol: str


def render(report: Report) -> str:
    """The page's source."""
    drawing.require()
    # Here, not on top: an optional dependency, though torch brings it.
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["spans"] = _spans
    environment.filters["slug"] = slug
    page = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    text = page.render(
        title=TITLE,
        lead=_lead(report.entries),
        provenance=_provenance(report.runs),
        sections=[_section(section) for section in report.sections],
        problems=problems(report.entries),
        absent=absent(report.entries),
        left_out=report.left_out,
        facts=list(_facts(report.runs)),
        hardware=paper.HARDWARE,
        definitions=DEFINITIONS,
        citation=CITATION,
        symbols=SYMBOLS,
        says=SAYS,
        words=WORDS,
        better=Verdict.BETTER,
        even=Verdict.EVEN,
        worse=Verdict.WORSE,
    )
    return text.lstrip()


def slug(text: str) -> str:
    """For ids and file names."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def _section(section: Section) -> dict[str, Any]:
    return {
        "key": slug(section.key),
        "title": section.title,
        "short": section.title.split(":")[0],
        "texts": section.texts,
        "tall": max((_height(table) for table in section.tables), default=0) >= TALL,
        "tables": section.tables,
        "figures": [_drawn(figure) for figure in section.figures],
    }


def _height(table: Table) -> int:
    return sum(len(group.rows) for group in table.groups)


def _drawn(figure: drawing.Figure) -> dict[str, Any]:
    styles = [(method_name(method), drawing.style(method)) for method in figure.methods]
    return {
        "key": slug(figure.key),
        "title": figure.title,
        "caption": figure.caption,
        "legend": [Key(name, color, symbol) for name, (color, _, symbol) in styles],
        "panels": [(panel.title, drawing.inline_svg(panel)) for panel in figure.panels],
        "small": all(panel.width < SMALL for panel in figure.panels),
    }


def _spans(table: Table) -> list[tuple[str, int]]:
    """Headings above headings with their widths; none where no two columns share one."""
    grouped = [
        (over, len(list(members)))
        for over, members in groupby(table.columns, key=lambda c: c.over if c.label else "")
    ]
    return grouped if any(over for over, _ in grouped) else []


def _lead(entries: list[Entry]) -> str:
    done = sum(len(entry.done) for entry in entries)
    datasets = len({entry.dataset for entry in entries if entry.done})
    tried = sum(len(entry.runs) for entry in entries)
    sets = f"{datasets} data set{'' if datasets == 1 else 's'}"
    return (
        "Exact Gaussian processes by megagp beside the numbers of Wang et al. (2019), cell by "
        f"cell: {done:,} of {tried:,} runs done, on {sets}."
    )


def _provenance(runs: Iterable[Run]) -> str:
    times = sorted(run.finished for run in runs if run.finished is not None)
    if not times:
        return "The runs carry no dates."
    first, last = times[0].date(), times[-1].date()
    span = f"on {first}" if first == last else f"between {first} and {last}"
    return (
        f"Finished {span}. Nothing here is loaded from elsewhere: the page can be kept as a file."
    )


def _facts(runs: list[Run]) -> Iterable[dict[str, Any]]:
    """Machines, versions and revisions that differ, each with how many runs it made."""
    for title, found in (
        ("Machine", [run.machine for run in runs]),
        ("Versions", [run.versions for run in runs]),
    ):
        kinds: dict[str, int] = {}
        for fact in found:
            text = json.dumps(fact, sort_keys=True)
            kinds[text] = kinds.get(text, 0) + 1
        for i, (text, count) in enumerate(sorted(kinds.items(), key=lambda kind: -kind[1]), 1):
            number = f" {i}" if len(kinds) > 1 else ""
            rows = [(_words(key), _value(key, value)) for key, value in json.loads(text).items()]
            rows = rows or [("not recorded", "")]
            yield {"title": f"{title}{number}, {count:,} runs", "rows": rows}
    revisions: dict[str, int] = {}
    for run in runs:
        revisions[run.git or "unknown"] = revisions.get(run.git or "unknown", 0) + 1
    rows = [(name, f"{count:,} runs") for name, count in revisions.items()]
    yield {"title": "Source revisions (git)", "rows": rows}


def _words(key: str) -> str:
    return key.removesuffix("_bytes").replace("_", " ")


def _value(key: str, value: Any) -> str:
    if key.endswith("_bytes") and isinstance(value, int | float):
        return f"{value / 1e9:.3g} GB"
    if isinstance(value, list):
        return ", ".join(str(each) for each in value)
    return "—" if value is None else str(value)
