"""The HTML report in a real browser: what only one that lays out, paints and takes keys can tell.

Must hold: one headless Chromium serves all of these tests, without a network; each measurement is shown to see a
planted mistake. Where there is no Chromium every test here is skipped with the reason, which the summary of the run
counts; `make test` installs one where it may. Must not: compare pictures.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_support import Chromium, find_chromium
from html_support import hostile_report, large_report, small_matrix, traced, wrong_report

from blocklaws.html import faults_page, trace_page, verify_page

#: What the issue of this report asks for.
MOST_BYTES, MOST_MILLISECONDS = 5_000_000, 2000
LEAST_CONTRAST = 4.5
NARROWEST = 320

pytestmark = pytest.mark.skipif(
    find_chromium() is None,
    reason="there is no Chromium here, so nothing is known of the HTML report in a browser: make browser",
)

PAGES = {
    "wrong": lambda: verify_page(wrong_report()),
    "hostile": lambda: verify_page(hostile_report()),
    "faults": lambda: faults_page(small_matrix()),
    "trace": lambda: trace_page([traced("norm-over-tokens"), traced(block="original")]),
}
OPEN_ALL = "document.querySelectorAll('details').forEach(each => each.open = true)"

#: The smallest ratio of contrast of any text that is shown, with the text; colours behind it are blended as they lie.
CONTRAST = """
(() => {
  const parse = text => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return {rgb: [r, g, b], a};
  };
  const over = (top, below) => top.rgb.map((value, i) => top.a * value + (1 - top.a) * below[i]);
  const light = rgb => {
    const [r, g, b] = rgb.map(v => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ground = element => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      const box = each.matches("g.stage") ? each.querySelector("rect") : null;
      layers.push(parse(box ? getComputedStyle(box).fill : getComputedStyle(each).backgroundColor));
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  let worst = {ratio: 99, text: ""}, texts = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.data.trim(), element = walker.currentNode.parentElement;
    if (!text || element.closest("script, style, title, desc, .sr, [aria-hidden=true] .sr")) continue;
    const style = getComputedStyle(element), below = ground(element);
    const ink = over(parse(element instanceof SVGElement ? style.fill : style.color), below);
    const [a, b] = [light(ink), light(below)].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    texts += 1;
    if (ratio < worst.ratio) worst = {ratio, text: text.slice(0, 60), ink, below, tag: element.tagName};
  }
  return {...worst, texts};
})()
"""
#: How wide the page is, and what in it is too wide without scrolling by itself.
WIDTH = "document.documentElement.scrollWidth"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    """Return the one browser of these tests."""
    executable = find_chromium()
    assert executable is not None
    with Chromium(executable) as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for the pages."""
    return tmp_path_factory.mktemp("pages")


@pytest.fixture
def page(browser: Chromium, folder: Path) -> Any:
    """Return a function that opens a page by its name, in a window of some width and theme."""

    @functools.cache
    def written(name: str) -> Path:
        path = folder / f"{name}.html"
        path.write_text(PAGES[name](), encoding="utf-8")
        return path

    def opened(name: str, width: int = 1280, scheme: str = "light", fragment: str = "") -> Chromium:
        browser.look(width, scheme)
        browser.open(written(name), fragment)
        return browser

    return opened


every_page = pytest.mark.parametrize("name", PAGES)


@every_page
def test_the_page_has_nothing_to_complain_about(page: Any, name: str) -> None:
    """Fails when the page logs an error, breaks its own policy, or wants something from a network."""
    browser = page(name)
    browser.evaluate(OPEN_ALL)
    assert browser.problems == []
    assert browser.evaluate("performance.getEntriesByType('resource').length") == 0
    # The page's own script ran, and would have been refused under another digest.
    assert browser.evaluate("typeof reveal") == "function"


def test_a_complaint_is_seen(page: Any) -> None:
    """Fails when the test above could not see an error, a refused script or a refused picture."""
    browser = page("wrong")
    browser.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=\"https://example.org/x.png\" onerror=y>')"
    )
    browser.evaluate("console.error('planted')")
    browser.evaluate("new Promise(done => setTimeout(done, 100))")
    told = " ".join(browser.problems)
    assert "planted" in told
    assert "Content Security Policy" in told


@every_page
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_themes(page: Any, name: str, scheme: str) -> None:
    """Fails when some text has too little contrast with what lies behind it."""
    browser = page(name, scheme=scheme)
    browser.evaluate(OPEN_ALL)
    dark = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark != "rgb(255, 255, 255)") == (scheme == "dark")
    worst = browser.evaluate(CONTRAST)
    assert worst["texts"] > 100
    assert worst["ratio"] >= LEAST_CONTRAST, worst


def test_poor_contrast_is_seen(page: Any) -> None:
    """Fails when the measurement above passes grey on white, or a text whose ground lies further up."""
    browser = page("wrong")
    browser.evaluate("document.querySelector('h1').style.color = '#999'")
    assert browser.evaluate(CONTRAST)["ratio"] == pytest.approx(2.85, abs=0.01)
    browser = page("wrong")
    browser.evaluate("document.querySelector('header').style.background = 'rgba(0, 0, 0, .6)'")
    assert browser.evaluate(CONTRAST)["ratio"] < LEAST_CONTRAST


@every_page
def test_a_phone_scrolls_the_page_in_one_direction(page: Any, name: str) -> None:
    """Fails when 320 pixels are too few for the page, whatever is opened and however long a name is."""
    browser = page(name, NARROWEST)
    assert browser.evaluate(WIDTH) == NARROWEST
    browser.evaluate(OPEN_ALL)
    assert browser.evaluate(WIDTH) == NARROWEST
    # What is wider scrolls by itself, and takes the focus, so that keys can scroll it.
    wide = "[...document.querySelectorAll('.scroll, .planes, pre')].filter(each => each.scrollWidth > each.clientWidth)"
    assert browser.evaluate(f"{wide}.length") > 0
    assert browser.evaluate(f"{wide}.every(each => each.tabIndex === 0)")


def test_too_wide_is_seen(page: Any) -> None:
    """Fails when the measurement above could not see a page that is too wide."""
    browser = page("wrong", NARROWEST)
    browser.evaluate("document.querySelector('h1').style.whiteSpace = 'nowrap'")
    assert browser.evaluate(WIDTH) > NARROWEST


FOCUSED = "(() => { const e = document.activeElement; return e.tagName + ' ' + e.textContent.trim().slice(0, 30); })()"


def test_everything_can_be_reached_with_the_keyboard(page: Any) -> None:
    """Fails when somebody without a mouse cannot come to a failure, open it, or see where they are."""
    browser = page("wrong")
    browser.press("Tab")
    assert browser.evaluate(FOCUSED) == "A Skip to the report"
    assert browser.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    browser.press("Enter")
    browser.press("Tab")
    # The first stop in the report is the first failure, which is open already; Enter closes it, and opens it again.
    assert browser.evaluate("document.activeElement.matches('article.failure > details[open] > summary')")
    outline = browser.evaluate(
        "getComputedStyle(document.activeElement).outlineStyle + getComputedStyle(document.activeElement).outlineWidth"
    )
    assert outline == "solid3px"
    for key, opened in (("Enter", False), (" ", True), ("Enter", False)):
        browser.press(key)
        assert browser.evaluate("document.activeElement.parentElement.open") is opened
    browser.press("Tab")
    assert browser.evaluate(
        "document.activeElement === document.querySelectorAll('article.failure > details > summary')[1]"
    )


def test_a_cell_drills_down_to_its_cases_and_a_case_to_its_failure(page: Any) -> None:
    """Fails when a link leads to something that stays closed."""
    browser = page("wrong")
    browser.evaluate("document.querySelector('#verdicts a[href^=\"#i\"]').focus()")
    browser.press("Enter")
    cases = "document.getElementById(location.hash.slice(1))"
    assert browser.evaluate(f"{cases}.matches('details.cases') && {cases}.open")
    browser.evaluate("document.querySelectorAll('details').forEach(each => each.open = false)")
    browser.evaluate("window.link = document.querySelector('.cases a[href^=\"#f\"]')")
    browser.evaluate("link.closest('details').open = true; link.focus()")
    browser.press("Enter")
    assert browser.evaluate(f"{cases}.matches('article.failure > details') && {cases}.open")
    assert 0 <= browser.evaluate(f"Math.round({cases}.getBoundingClientRect().top)") < 200
    # The heading above a summary opens it too.
    second = browser.evaluate("document.querySelectorAll('article.failure > details')[1].id")
    place = f"document.getElementById('{second}').previousElementSibling.getBoundingClientRect()"
    browser.evaluate(f"document.getElementById('{second}').scrollIntoView({{block: 'center'}})")
    x, y = (browser.evaluate(f"{place}.{side}") for side in ("left", "top"))
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, x=x + 30, y=y + 10, button="left", clickCount=1)
    assert browser.evaluate(f"document.getElementById('{second}').open")
    # A link into the page from outside opens as well.
    browser = page("wrong", fragment=second)
    assert browser.evaluate(f"document.getElementById('{second}').open")


def test_a_screen_reader_hears_names(page: Any) -> None:
    """Fails when the browser itself finds no name for a table, a picture or a region, or no landmarks."""
    browser = page("wrong")
    browser.evaluate(OPEN_ALL)
    tree = [node for node in browser.call("Accessibility.getFullAXTree")["nodes"] if not node.get("ignored")]
    roles: dict[str, list[str]] = {}
    for node in tree:
        roles.setdefault(node.get("role", {}).get("value", ""), []).append(node.get("name", {}).get("value", ""))
    assert {"banner", "navigation", "main", "contentinfo"} <= set(roles)
    for role in ("navigation", "region", "table", "image", "heading", "link"):
        names = roles.get(role, [])
        assert names, role
        assert all(names), (role, names)
    assert "The block, norms in the branches" in roles["image"]
    assert {"rowheader", "columnheader"} <= set(roles)
    # What can be gone to by headings: the page, its sections, each failure and its parts.
    assert [name for name in roles["heading"] if "prefix-invariance" in name]


def test_print_opens_what_is_closed(page: Any) -> None:
    """Fails when paper shows summaries alone, or cuts off what would scroll on a screen."""
    browser = page("wrong")
    closed = "document.querySelector('details.cases:not([open]) td')"
    assert not browser.evaluate(f"{closed}.checkVisibility({{contentVisibilityAuto: true}})")
    browser.look(1280, media="print")
    assert browser.evaluate(f"{closed}.checkVisibility({{contentVisibilityAuto: true}})")
    assert browser.evaluate(f"{closed}.getBoundingClientRect().height") > 0
    assert browser.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.evaluate("getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"
    assert 10_000 < len(browser.call("Page.printToPDF")["data"]) < 4_000_000
    # An older browser cannot style what is closed; there the script opens it, and closes it again.
    count = "document.querySelectorAll('details:not([open])').length"
    before = browser.evaluate(count)
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert (before > 0, browser.evaluate(count)) == (True, 0)
    browser.evaluate("dispatchEvent(new Event('afterprint'))")
    assert browser.evaluate(count) == before


def test_five_thousand_cases(browser: Chromium, folder: Path) -> None:
    """Fails when a report of a whole library's blocks is too large to send or too slow to open."""
    path = folder / "large.html"
    path.write_text(verify_page(large_report(5000)), encoding="utf-8")
    assert path.stat().st_size < MOST_BYTES
    browser.look(1280)
    # The first load of a page also warms the browser; the better of two is what the page costs.
    loads = []
    for _ in range(2):
        browser.open(path)
        loads.append(browser.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
    assert browser.evaluate("document.querySelectorAll('details.cases tbody tr').length") == 5000
    assert 0 < min(loads) < MOST_MILLISECONDS
    assert browser.problems == []
