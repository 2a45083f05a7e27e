"""The built book as a reader's browser sees it: `-W -n` passes script errors, outside requests and pages wider than a
phone.
"""

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import nbformat
import pytest

from serving_study import paths
from serving_study.chapters import book
from serving_study.errors import BookError

pytestmark = pytest.mark.alone

WIDTHS = {"wide": 1280, "phone": 390}
SIDEWAYS = """() => [...document.querySelectorAll('main *')]
  .filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0)
  .filter(e => ['auto', 'scroll'].includes(getComputedStyle(e).overflowX))
  .filter(e => !e.matches('div.output.text_html, .pst-scrollable-table-container, div.math, mjx-container'))
  .map(e => e.tagName + '.' + e.className + ': ' + e.textContent.trim().slice(0, 60))"""
THEME_AND_OVERFLOW = "(e => [e.dataset.theme, e.scrollWidth - e.clientWidth])(document.documentElement)"
CONTRAST = """element => {
  const [ink, paper] = ['color', 'backgroundColor'].map(name => {
    const [r, g, b] = getComputedStyle(element)[name].match(/[0-9.]+/g).map(Number).map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  });
  return Math.max(ink, paper) / Math.min(ink, paper);
}"""


def pages(html: Path) -> list[str]:
    return sorted(
        page.relative_to(html).as_posix()
        for page in html.rglob("*.html")
        if "_static" not in page.relative_to(html).parts
    )


@pytest.fixture
def open_page(browser, served):
    """Return a function that opens a page of the book and gives it back with the list of what went wrong on it."""
    contexts, inside = [], (f"{served}/", "data:", "blob:")

    def opened(path: str, *, width: int = 1280, scheme: str = "light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, is_mobile=False)
        contexts.append(context)
        page, troubles = context.new_page(), []
        page.on(
            "console", lambda message: troubles.append(f"console: {message.text}") if message.type == "error" else None
        )
        page.on("pageerror", lambda error: troubles.append(f"script: {error}"))
        page.on(
            "request",
            lambda request: None if request.url.startswith(inside) else troubles.append(f"outside: {request.url}"),
        )
        page.on(
            "response",
            lambda answer: troubles.append(f"{answer.status}: {answer.url}") if answer.status >= 400 else None,
        )
        page.on("requestfailed", lambda request: troubles.append(f"failed: {request.url}"))
        page.goto(f"{served}/{path}", wait_until="networkidle")
        return page, troubles

    yield opened
    for context in contexts:
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_every_page_opens_without_trouble(html, open_page, width, scheme):
    wrong = []
    for path in pages(html):
        page, troubles = open_page(path, width=width, scheme=scheme)
        wrong += [f"{path}: {trouble}" for trouble in troubles]
        shown, across = page.evaluate(THEME_AND_OVERFLOW)
        if shown != scheme:
            wrong.append(f"{path}: theme {shown}, asked for {scheme}")
        if across > 0:
            wrong.append(f"{path}: {across} px wider than the {width} px window")
        if width == WIDTHS["phone"]:
            wrong += [f"{path}: scrolls sideways: {element}" for element in page.evaluate(SIDEWAYS)]
        page.context.close()
    assert not wrong, "\n".join(wrong)


def test_the_theme_button_switches_to_dark_and_stays(open_page):
    page, _ = open_page("book/sections/98-specimen.html")
    for _ in range(3):
        if page.evaluate("document.documentElement.dataset.theme") == "dark":
            break
        page.locator("button.theme-switch-button:visible").first.click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload(wait_until="networkidle")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_the_index_leads_to_the_introduction(open_page, served):
    page, _ = open_page("index.html")
    page.wait_for_url(f"{served}/book/intro.html")


def test_maths_is_drawn_as_svg_by_the_books_own_mathjax(html, open_page):
    with_maths = [path for path in pages(html) if 'class="math ' in (html / path).read_text()]
    assert "book/sections/98-specimen.html" in with_maths
    for path in with_maths:
        page, troubles = open_page(path)
        page.wait_for_selector("mjx-container[jax=SVG] svg")
        assert page.locator(".math").count() == page.locator(".math mjx-container[jax=SVG]").count(), path
        assert page.locator("mjx-merror, [data-mjx-error]").count() == 0, path
        assert not troubles


def test_search_finds_the_specimen(open_page):
    page, troubles = open_page("search.html?q=specimen")
    page.wait_for_selector("#search-results li a")
    found = page.locator("#search-results li a").evaluate_all("links => links.map(link => link.href)")
    assert any("book/sections/98-specimen.html" in link for link in found), found
    assert not troubles


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_badges_and_tables_are_legible_in_both_themes(open_page, scheme):
    page, _ = open_page("book/99-after.html", scheme=scheme)
    assert page.locator("[class^=badge-]").count() == 4
    for badge in page.locator("[class^=badge-]").all():
        assert badge.evaluate(CONTRAST) >= 4.5, badge.evaluate("e => e.className")
    page, _ = open_page("book/sections/98-specimen.html", scheme=scheme)
    assert page.locator("table.dataframe [class^=badge-]").count() == 3
    assert page.locator("table.dataframe thead th").first.evaluate(CONTRAST) >= 4.5
    cell = page.locator("table.dataframe td").first
    style = cell.evaluate("e => (s => [s.textAlign, s.whiteSpace, s.fontVariantNumeric])(getComputedStyle(e))")
    assert style == ["right", "nowrap", "lining-nums tabular-nums"]


def test_a_wide_table_scrolls_inside_its_box_on_a_phone(open_page):
    page, _ = open_page("book/sections/98-specimen.html", width=WIDTHS["phone"])
    assert page.locator("div.output.text_html").first.evaluate(
        "e => e.scrollWidth > e.clientWidth && e.clientWidth <= 390"
    )


class Anchors(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.names = [], {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.names |= {values[key] for key in ("id", "name") if values.get(key)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])


def test_every_internal_link_and_anchor_resolves(html):
    anchors = {path: Anchors((html / path).read_text()) for path in pages(html)}
    broken = []
    for path, found in anchors.items():
        for link in found.links:
            if urlsplit(link).scheme:
                continue
            target, fragment = urldefrag(urljoin(f"/{path}", link))
            target = unquote(urlsplit(target).path).lstrip("/")
            if not (html / target).is_file() or (target in anchors and unquote(fragment) not in anchors[target].names):
                broken.append(f"{path}: {link}")
    assert not broken, "\n".join(broken)


def test_glued_numbers_and_citation_reach_another_page(open_page):
    page, _ = open_page("book/99-after.html")
    text = page.locator("main").inner_text()
    assert "1.74 times, by draft k=3" in text
    assert "Leviathan et al." in text and "2023" in text
    page, _ = open_page("book/sections/98-specimen.html")
    assert re.search(r"In Fig\. \d+, 1\.74 times", page.locator("main").inner_text())


def test_a_tables_style_reaches_one_table_of_each_page(html, open_page):
    for path in pages(html):
        page, _ = open_page(path)
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map(element => element.id).filter(Boolean)")
        assert not {name for name, times in Counter(ids).items() if times > 1}, path
        page.context.close()


def test_the_book_passes_its_own_check(html):
    book.check(html / "index.html")


def test_no_page_mentions_thebe(html):
    assert [path for path in pages(html) if "thebe" in (html / path).read_text().lower()] == []


def test_only_the_mathjax_that_is_used_is_in_the_book(html):
    assert {entry.name for entry in (html / "_static" / "mathjax").iterdir()} == {"tex-svg.js", "input", "a11y", "sre"}


def test_what_was_hidden_is_hidden(html):
    text = (html / "book/sections/98-specimen.html").read_text()
    assert "some noise" not in text and "import matplotlib" not in text and "object at 0x" not in text
    assert "results in data/results" in text


def test_two_runs_over_the_same_data_publish_the_same_bytes(executed, tmp_path, monkeypatch):
    published = []
    for number, notebook in enumerate(executed):
        monkeypatch.setattr(paths, "SECTIONS", tmp_path / str(number))
        published.append(book.publish(notebook, "98-specimen").read_bytes())
    assert published[0] == published[1]
    assert executed[0].read_bytes() != executed[1].read_bytes()
    assert str(paths.ROOT).encode() not in published[0]


@pytest.fixture
def small(tmp_path):
    """A book of two pages, to break."""
    (tmp_path / "book" / "sections").mkdir(parents=True)
    (tmp_path / "_config.yml").write_text(
        'title: small\nonly_build_toc_files: true\nexecute: {execute_notebooks: "off"}\n'
    )
    (tmp_path / "_toc.yml").write_text(
        "format: jb-book\nroot: book/intro\nchapters:\n  - file: book/sections/02-small\n"
    )
    (tmp_path / "book" / "intro.md").write_text("# Small\n\nText.\n")
    error = nbformat.v4.new_output("error", ename="ValueError", evalue="planted", traceback=["ValueError: planted"])
    cells = [
        nbformat.v4.new_markdown_cell("# Two", id="a"),
        nbformat.v4.new_code_cell("raise ValueError('planted')", id="b", execution_count=1, outputs=[error]),
    ]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(
        nbformat.v4.new_notebook(cells=cells, metadata=kernel), tmp_path / "book" / "sections" / "02-small.ipynb"
    )
    return tmp_path


def test_an_error_output_passes_the_build_and_fails_the_check(small):
    index = book.build(root=small)
    with pytest.raises(BookError, match="02-small.html: shows an error output"):
        book.check(index)


def test_a_warning_fails_the_build_and_is_quoted(small):
    (small / "book" / "intro.md").write_text("# Small\n\nSee {ref}`nowhere` and {term}`nothing`.\n")
    with pytest.raises(BookError, match="undefined label: 'nowhere'") as raised:
        book.build(root=small)
    assert "nothing" in str(raised.value) and "book.log" in str(raised.value)
    assert book.build(strict=False, root=small).exists()
