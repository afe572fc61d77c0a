"""Tables in LaTeX, with the booktabs package."""

from __future__ import annotations

from itertools import groupby

from megagp.report.entries import Verdict
from megagp.report.tables import Cell, Table

SYMBOLS = {Verdict.BETTER: r"$\checkmark$", Verdict.WORSE: r"$\times$", Verdict.EVEN: r"$\approx$"}
LEGEND = (
    r"$\checkmark$: ours is better, $\times$: the paper's is, $\approx$: even (equal to three "
    r"decimals, or apart by no more than both standard deviations together)."
)
SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "\u2212": "$-$",
    "—": "---",
    "×": r"$\times$",
    "σ": r"$\sigma$",
}
PREAMBLE = "% Needs \\usepackage{booktabs, amssymb, graphicx}.\n"


def write(table: Table) -> str:
    """A table environment, shrunk to the width of the text where it is wider."""
    columns = table.columns
    shape = "l" * (1 + _leading(table)) + "r" * (len(columns) - _leading(table))
    lines = [
        r"\begin{table}",
        r"  \centering",
        f"  \\caption{{{escape(table.title)}. {escape(table.caption)} {LEGEND}}}",
        f"  \\label{{tab:megagp-{_label(table.key)}}}",
        r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        f"  \\begin{{tabular}}{{{shape}}}",
        r"    \toprule",
    ]
    if any(column.over and column.label for column in columns):
        lines += _spanning(table)
    names = [column.label if column.label else column.over for column in columns]
    lines.append(_row([table.head, *names]))
    for group in table.groups:
        lines.append(r"    \midrule")
        for i, row in enumerate(group.rows):
            cells = " & ".join(_cell(cell) for cell in row)
            lines.append(f"    {escape(group.label) if i == 0 else ''} & {cells} \\\\")
    lines += [r"    \bottomrule", r"  \end{tabular}}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def document(tables: list[Table], title: str) -> str:
    """All tables, to be \\input in a document."""
    return "\n".join(
        [f"% {' '.join(title.split())}\n{PREAMBLE}", *(write(table) for table in tables)]
    )


def escape(text: str) -> str:
    return "".join(SPECIAL.get(letter, letter) for letter in " ".join(text.split()))


def _cell(cell: Cell) -> str:
    text = f"\\textbf{{{escape(cell.text)}}}" if cell.bold else escape(cell.text)
    return text if cell.verdict is None else f"{text} {SYMBOLS[cell.verdict]}"


def _spanning(table: Table) -> list[str]:
    """The headings above headings, with rules below them."""
    cells, rules, place = [""], [], 2
    for over, members in groupby(table.columns, key=lambda c: c.over if c.label else ""):
        width = len(list(members))
        if over:
            cells.append(f"\\multicolumn{{{width}}}{{c}}{{{escape(over)}}}")
            rules.append(f"\\cmidrule(lr){{{place}-{place + width - 1}}}")
        else:
            cells += [""] * width
        place += width
    return [f"    {' & '.join(cells)} \\\\", f"    {' '.join(rules)}"]


def _row(texts: list[str]) -> str:
    return f"    {' & '.join(escape(text) for text in texts)} \\\\"


def _leading(table: Table) -> int:
    """How many columns after the first hold words."""
    return sum(column.label in ("method", "quantity") for column in table.columns)


def _label(key: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in key)
