"""Where the report goes: a page, tables in one file or a folder, figures in a folder."""

from __future__ import annotations

import secrets
from pathlib import Path

from megagp.report import drawing, latex, markdown, page
from megagp.report.report import TITLE, Report

FORMATS = {".md": markdown, ".tex": latex}


def write_page(report: Report, path: Path) -> Path:
    """One .html file."""
    _put(path, page.render(report))
    return path


def write_tables(report: Report, path: Path, ending: str) -> list[Path]:
    """All tables in one file, or, if path is a folder or has no ending, each in its own there."""
    written = FORMATS[ending]
    if path.suffix and not path.is_dir():
        _put(path, written.document(report.tables, TITLE))
        return [path]
    path.mkdir(parents=True, exist_ok=True)
    made = []
    for table in report.tables:
        made.append(path / f"{page.slug(table.key)}{ending}")
        _put(made[-1], written.document([table], table.title))
    return made


def write_figures(report: Report, folder: Path, kinds: list[str]) -> list[Path]:
    """Each figure as a file of each kind, svg or png."""
    drawing.require()
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for figure in report.figures:
        for kind in kinds:
            made.append(folder / f"{page.slug(figure.key)}.{kind}")
            drawing.save(figure, made[-1])
    return made


def _put(path: Path, text: str) -> None:
    """The file has its name once it is whole."""
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{path}: expected a file name in a folder that exists; create it first")
    temporary = path.with_name(f".{secrets.token_hex(8)}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
