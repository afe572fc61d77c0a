"""The page, Markdown, LaTeX and figures, from results that have everything odd in them."""

import html.parser
import re
import sys

import pytest
from typer.testing import CliRunner

from megagp.cli.app import app
from megagp.report import (
    build,
    drawing,
    latex,
    markdown,
    write_figures,
    write_page,
    write_tables,
)
from report import synthetic

VOID = {"meta", "link", "br", "img"}


class Outline(html.parser.HTMLParser):
    """Elements that must balance, their ids, and where the page would load from."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.counts, self.loads, self.text = [], [], {}, [], []

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        found = dict(attributes)
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.ids += [found["id"]] if "id" in found else []
        links = [found[a] for a in ("src", "href", "xlink:href") if a in found]
        self.loads += [link for link in links if not link.startswith(("#", "data:"))]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    return build(synthetic.write(folder, synthetic.everything()))


@pytest.fixture(scope="module")
def page(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    return write_page(report, path).read_text(encoding="utf-8")


def test_the_page_is_whole_and_needs_nothing_else(page):
    outline = Outline()
    outline.feed(page)
    assert outline.open == []
    assert outline.loads == []
    assert len(outline.ids) == len(set(outline.ids))
    assert not re.search(r"url\((?!#)|@import", page)
    assert outline.counts["svg"] > 20
    assert outline.counts["table"] == outline.counts["caption"]
    assert "script" not in outline.counts
    assert len(re.findall(r'<svg role="img" aria-label="[^"]+', page)) == outline.counts["svg"]
    targets = re.findall(r'<a href="#([^"]+)"', page)
    assert targets
    assert set(targets) <= set(outline.ids)


def test_odd_names_stay_text(page):
    outline = Outline()
    outline.feed(page)
    text = "".join(outline.text)
    assert synthetic.ODD in text
    assert "<script>alert(1)</script>" in text
    assert "no <file> at hand" in text
    assert "<b>" not in page


def test_the_page_says_what_is_missing(page):
    for said in ("skipped", "failed", "out of memory", "not finite", "houseelectric, subset"):
        assert said in page
    assert "stands in for 3droad" in page
    assert "table3: elevators" in page  # not run at all
    assert "abc1234" in page
    assert "16 GB" in page


def test_every_suite_has_its_table_and_figure(report):
    keys = [section.key for section in report.sections]
    tables = [f"table{i}" for i in range(1, 6)]
    figures = [f"fig{i}" for i in range(1, 6)]
    assert keys == ["glance", *tables, "across", *figures, "smoke", "mine"]
    drawn = [figure.key for figure in report.figures]
    assert drawn == ["parity", "times", "calibration", "convergence", "lengthscales", *figures]


def test_the_fitted_slope_is_said(report):
    """Times were made as n²."""
    times = next(figure for figure in report.figures if figure.key == "times")
    assert "exact GP, paper's recipe 2.00" in times.panels[0].alt
    growth = next(figure for figure in report.figures if figure.key == "fig4").panels[1]
    assert "exact GP 2.00" in growth.alt


def test_the_same_results_give_the_same_picture(report, page):
    assert drawing.inline_svg(report.figures[0].panels[0]) in page


def test_a_single_run_is_enough(tmp_path):
    for suite in ("table1", "fig1", "fig4", "mine"):
        lines = [synthetic.record(suite, "pol", "exact", status="failed", reason="why not")]
        found = build(synthetic.write(tmp_path / suite, lines))
        text = write_page(found, tmp_path / "one.html").read_text()
        assert "why not" in text


def test_figures_as_files(report, tmp_path):
    one = type(report)(report.runs, report.entries, [], report.sections[-3:-1])
    made = write_figures(one, tmp_path / "figures", ["svg", "png"])
    assert [path.name for path in made] == ["fig5.svg", "fig5.png"]
    assert made[0].read_text().count("<svg") == 1
    assert made[1].read_bytes().startswith(b"\x89PNG")


def test_markdown_rows_have_as_many_cells_as_the_header(report, tmp_path):
    (path,) = write_tables(report, tmp_path / "tables.md", ".md")
    lines = [line for line in path.read_text().splitlines() if line.startswith("|")]
    cells = [len(re.findall(r"(?<!\\)\|", line)) for line in lines]
    starts = [i for i, line in enumerate(lines) if line.startswith("| ---")]
    for start, end in zip(starts, [*(s - 1 for s in starts[1:]), len(lines)], strict=True):
        assert len(set(cells[start - 1 : end])) == 1
    assert r"odd &lt;b&gt;&amp;" in path.read_text()


def test_latex_rows_have_as_many_cells_as_the_header(report, tmp_path):
    files = write_tables(report, tmp_path / "tables", ".tex")
    assert len(files) == len(report.tables)
    for path in files:
        text = path.read_text()
        assert text.count(r"\begin{") == text.count(r"\end{")
        plain = text.replace("\\{", "").replace("\\}", "")
        assert plain.count("{") == plain.count("}")
        width = len(re.search(r"begin\{tabular\}\{(\w+)\}", text)[1])
        rows = [line for line in text.splitlines() if line.endswith(r"\\")]
        for row in rows:
            spanned = sum(int(n) - 1 for n in re.findall(r"multicolumn\{(\d+)\}", row))
            assert len(re.findall(r"(?<!\\)&", row)) + 1 + spanned == width


def test_escapes():
    assert markdown.escape("a|b_c*d`<e>\n&") == r"a\|b\_c\*d\`&lt;e&gt; &amp;"
    assert latex.escape("5% & $x_1$ {a} #~^\\") == (
        r"5\% \& \$x\_1\$ \{a\} \#\textasciitilde{}\textasciicircum{}\textbackslash{}"
    )
    assert latex.escape("−0.1 ± 0.2 —") == r"$-$0.1 $\pm$ 0.2 ---"


def test_labels_of_log_axes():
    values = (0.03, 500, 20_000, 3e6, 1e-5)
    assert [drawing.power_label(v) for v in values] == ["0.03", "500", "20k", "3M", "1e−5"]


def run(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    synthetic.write(tmp_path / "results", [synthetic.record("table1", "pol", "exact")])
    with (tmp_path / "results" / "table1.jsonl").open("a") as file:
        file.write('{"suite": "tab')
    done = run("results")
    assert done.exit_code == 0, done.output
    assert "wrote report.html: 1 runs" in done.stderr
    assert "table1.jsonl, line 2: expected JSON" in done.stderr
    assert (tmp_path / "report.html").is_file()
    done = run("results", "--markdown", "t.md", "--latex", "tex", "--figures", "figures")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "t.md").is_file()
    assert (tmp_path / "tex" / "table1.tex").is_file()
    assert (tmp_path / "figures" / "parity.svg").is_file()


def test_command_in_an_empty_folder(tmp_path):
    (tmp_path / "results").mkdir()
    failed = run(tmp_path / "results", "-o", tmp_path / "report.html")
    assert failed.exit_code == 1
    assert "expected .jsonl files of results, got none" in failed.stderr
    assert not (tmp_path / "report.html").exists()


def test_without_matplotlib_there_are_tables_and_a_sentence(tmp_path, monkeypatch):
    synthetic.write(tmp_path, [synthetic.record("table1", "pol", "exact")])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    failed = run(tmp_path, "-o", tmp_path / "report.html")
    assert failed.exit_code == 1
    assert "pip install 'megagp[report]'" in failed.stderr
    assert len(failed.stderr.strip().splitlines()) == 1
    assert run(tmp_path, "--markdown", tmp_path / "t.md").exit_code == 0
