"""Tables in Markdown, as GitHub and most others read it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from megagp.report.entries import Verdict
from megagp.report.tables import Cell, Table

SYMBOLS = {Verdict.BETTER: "✓", Verdict.WORSE: "✗", Verdict.EVEN: "≈"}
LEGEND = (
    "✓ ours is better, ✗ the paper's is, ≈ even (equal to three decimals, or apart by no more "
    "than both standard deviations together); the better mean is bold."
)


def write(table: Table) -> str:
    """A heading, the caption, and the table; each group's name stands in its first row."""
    lines = [f"## {escape(table.title)}", "", escape(table.caption), ""]
    header = [table.head, *(column.name for column in table.columns)]
    lines.append(_line(escape(name) for name in header))
    lines.append(_line("---" for _ in header))
    for group in table.groups:
        note = f" ({escape(group.note)})" if group.note else ""
        for i, row in enumerate(group.rows):
            name = f"{escape(group.label)}{note}" if i == 0 else ""
            lines.append(_line([name, *(_cell(cell) for cell in row)]))
    return "\n".join(lines) + "\n"


def document(tables: list[Table], title: str) -> str:
    return "\n".join([f"# {escape(title)}", "", LEGEND, "", *(write(table) for table in tables)])


def escape(text: str) -> str:
    """Characters that Markdown or HTML within it would read as theirs; one line."""
    text = re.sub(r"([\\`*_\[\]|#~])", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _cell(cell: Cell) -> str:
    text = f"**{escape(cell.text)}**" if cell.bold else escape(cell.text)
    if cell.verdict is not None:
        text += f" {SYMBOLS[cell.verdict]}"
    return f"{text} ({escape(cell.note)})" if cell.note else text


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
