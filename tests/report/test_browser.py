"""The page in headless Chromium: it renders, says nothing to the console, and fits its window."""

import shutil

import pytest

from megagp.report import build, write_page
from report import synthetic

pytestmark = pytest.mark.browser
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# Drawn shapes of every panel that are visible and have a size.
SIZES = """[...document.querySelectorAll('.panel svg')].map(svg => {
  const box = svg.getBoundingClientRect();
  return [box.width, box.height, svg.querySelectorAll('path').length];
})"""
# Anything that sticks out of the window, but for what is meant for screen readers alone.
OUTSIDE = """[...document.querySelectorAll('main *')].filter(e =>
  !e.closest('.hidden, thead, svg') && e.getBoundingClientRect().right > innerWidth + 1
).map(e => e.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    found = build(synthetic.write(folder, synthetic.everything()))
    return write_page(found, folder / "report.html").as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_renders(browser, address, width, scheme):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    assert said == []
    assert asked == [address]
    assert page.evaluate(OVERFLOW) <= 0
    assert page.evaluate(OUTSIDE) == []
    sizes = page.evaluate(SIZES)
    assert len(sizes) > 20
    assert all(w > 120 and h > 90 and paths > 5 for w, h, paths in sizes)
    page.close()


def test_the_page_prints(browser, address):
    page = browser.new_page()
    page.goto(address)
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    page.close()
