"""The documentation site: it is built without a warning, no link in it is dead, and it needs no network."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

import selfish_rnn

ROOT = Path(__file__).parents[2]
NEEDED = ("mkdocs", "material", "mkdocstrings_handlers")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in NEEDED), reason="needs pip install . --group docs"
    ),
]


class Addresses(HTMLParser):
    """What a page links to, what it loads, and the places in it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.places |= {given.get("id", ""), given.get("name", "")}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.append(given.get("href", ""))
        elif tag in ("script", "img", "iframe", "source") and given.get("src"):
            self.loaded.append(given["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Addresses]:
    return {page: Addresses(page.read_text()) for page in sorted(site.rglob("*.html")) if page.name != "404.html"}


def dead(pages: dict[Path, Addresses]) -> Iterator[str]:
    for page, addresses in pages.items():
        for address in [*addresses.links, *addresses.loaded]:
            if urlsplit(address).scheme:
                continue
            target, place = urldefrag(address)
            file = (page.parent / unquote(urlsplit(target).path)).resolve() if target else page
            if not file.exists():
                yield f"{page.name}: {address}"
            elif place and file in pages and place not in pages[file].places:
                yield f"{page.name}: no place {address}"


def test_no_internal_link_is_dead(pages: dict[Path, Addresses]) -> None:
    assert len(pages) > 25
    assert list(dead(pages)) == []


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Addresses]) -> None:
    outside = {address for page in pages.values() for address in page.loaded if urlsplit(address).scheme == "https"}
    assert outside == set()


def test_every_page_is_in_the_navigation(site: Path, pages: dict[Path, Addresses]) -> None:
    linked = {(site / urldefrag(link)[0]).resolve() for link in pages[site / "index.html"].links}
    written = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in written if (site / page).resolve() not in linked} == set()


def test_the_limits_of_the_readme_are_on_their_page(site: Path) -> None:
    assert "Other devices simulate sparsity with masks" in (site / "limits.html").read_text()


def test_every_public_name_is_in_the_reference(site: Path, pages: dict[Path, Addresses]) -> None:
    reference = {page: addresses for page, addresses in pages.items() if page.parent == site / "api"}
    places = set().union(*(addresses.places for addresses in reference.values()))
    text = "\n".join(page.read_text() for page in reference)
    for name in selfish_rnn.__all__:
        assert f"selfish_rnn.{name}" in places or f"<code>{name}</code>" in text, name


def test_the_reference_shows_examples_as_code(site: Path) -> None:
    text = (site / "api" / "sparsifier.html").read_text()
    assert ":class:" not in text
    assert "&gt;&gt;&gt;" not in (site / "api" / "optim.html").read_text().replace('<span class="gp">&gt;&gt;&gt;', "")


def test_the_site_works_from_a_file_in_a_browser(site: Path) -> None:
    sys.path.insert(0, str(ROOT / "tests" / "analysis"))
    try:
        import browser
    finally:
        sys.path.pop(0)
    executable = browser.find_chromium()
    if executable is None:
        pytest.skip("needs Chromium")
    with browser.browser(executable) as page:
        for width in (1280, 390):
            for name in ("index", "how-it-works", "configuration", "paper", "api/sparsifier", "results"):
                page.open(site / f"{name}.html", width=width)
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (
                    f"{name} is wider than the screen"
                )
        page.open(site / "how-it-works.html")
        shown = "[...document.querySelectorAll('.steps > figure')].findIndex(p => p.classList.contains('shown'))"
        assert page.evaluate(shown) == 0
        page.evaluate("[...document.querySelectorAll('.steps-buttons button')][1].click()")
        assert page.evaluate(shown) == 1
        page.evaluate(
            "const q = document.querySelector('[data-md-component=search-query]'); q.focus(); q.value = 'rewiring';"
            "q.dispatchEvent(new Event('keyup', {bubbles: true})); q.dispatchEvent(new Event('input', {bubbles: true}))"
        )
        found = "document.querySelectorAll('.md-search-result__item').length"
        page.wait_for(f"{found} > 0")
        assert page.evaluate(found) > 3
        assert page.problems == []
