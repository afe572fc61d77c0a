"""megagp report: stored results as a page and tables, beside the paper's numbers."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from megagp.cli.reporting import note
from megagp.report import build, write_figures, write_page, write_tables


class Picture(str, Enum):
    svg = "svg"
    png = "png"


def report(
    results: Annotated[
        Path, typer.Argument(help="Folder of .jsonl files that megagp bench wrote.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Page to write; report.html if nothing else is asked for."
        ),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Markdown tables: a file, or a folder for one file each.")
    ] = None,
    latex: Annotated[
        Path | None, typer.Option(help="LaTeX tables: a file, or a folder for one file each.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for the figures as files.")] = None,
    picture: Annotated[
        list[Picture] | None,
        typer.Option(help="Kind of those files (default svg); may be repeated."),
    ] = None,
) -> None:
    """Show results beside the paper's, in one page that can be read offline and in print.

    [bold]Examples[/bold]

    megagp report results/ -o report.html

    megagp report results/ --markdown tables.md --latex tables.tex --figures figures/
    """
    if output is None and markdown is None and latex is None and figures is None:
        output = Path("report.html")
    found = build(results)
    for line in found.left_out:
        note(f"warning: {line}; the line is left out")
    if output is not None:
        note(f"wrote {write_page(found, output)}: {len(found.runs)} runs")
    for path, ending in ((markdown, ".md"), (latex, ".tex")):
        if path is not None:
            made = write_tables(found, path, ending)
            note(f"wrote {path}: {len(found.tables)} tables, {len(made)} files")
    if figures is not None:
        kinds = [kind.value for kind in picture or [Picture.svg]]
        note(f"wrote {figures}: {len(write_figures(found, figures, kinds))} figures")
