"""Hooks of mkdocs for this site: files outside docs/ that pages link to, the changelog, captions, and what nobody
listed.

A page may link to a file or folder outside ``docs/``, as it is read in the repository: ``../results/bench``. The site
gets a copy of such a file, and of a folder a page that lists what is in it, so that no link leads out of the site.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
COPIES = "repository"
"""Folder of the copies in the site."""

PAGES = {"CHANGELOG.md": "changelog.md", "README.md": "index.md"}
"""Pages of the site that stand for files outside ``docs/``."""

LINK = re.compile(r"(?<=\]\()(?P<target>[^)#\s]+)(?P<rest>#[^)\s]*)?(?=\))")
FENCE = re.compile(r"^(```.*?^```)", flags=re.DOTALL | re.MULTILINE)
INCLUDED = re.compile(r"<!-- README: (.+) -->")
PICTURES = re.compile(r"<p>((?:\s*<img [^>]*>)+)\s*</p>")
PICTURE = re.compile(r'<img alt="([^"]*)"[^>]*>')
SHOWN_AS_TEXT = (".py", ".hpp", ".cpp", ".sh", ".yaml", ".cff", ".toml", ".txt")
MOST_LISTED = 40


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages that the navigation does not name to the how-to guides."""
    listed = set(_named(config.nav or []))
    docs = Path(config.docs_dir)
    others = [page for page in sorted(docs.glob("*.md")) if page.name not in listed]
    guides: list[Any] = next((entry["How-to guides"] for entry in config.nav or [] if "How-to guides" in entry), [])
    guides.extend(page.name for page in others)
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the changelog, and what pages link to outside the documentation."""
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, PAGES["CHANGELOG.md"], content=changes))
    wanted = {
        target for file in files.documentation_pages() for target in _outside_links(file.content_string, file.src_uri)
    }
    while wanted:
        target = wanted.pop()
        uri = _copy(target)
        if files.get_file_from_path(uri) is not None or not (ROOT / target).exists():
            continue
        path = ROOT / target
        if path.is_dir():
            inside = sorted(entry for entry in path.iterdir() if not _private(entry))
            wanted.update(_relative(entry) for entry in inside)
            files.append(File.generated(config, uri, content=_listing(target, inside)))
        elif target.endswith(".md"):
            content = path.read_text(encoding="utf-8")
            wanted.update(_outside_links(content, uri))
            files.append(File.generated(config, uri, content=content))
        elif target.endswith(SHOWN_AS_TEXT):
            content = f"# {target}\n\n```{path.suffix[1:]}\n{path.read_text(encoding='utf-8')}\n```\n"
            files.append(File.generated(config, uri, content=content))
        else:
            files.append(File.generated(config, uri, content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links that go outside the documentation to the copies; describe public names that no page describes."""
    source = page.file.src_uri
    markdown = INCLUDED.sub(lambda match: _readme_section(match[1]), markdown)
    if source == "api/index.md":
        markdown += "".join(f"\n::: selfish_rnn.{name}\n" for name in _undescribed())

    def inside(match: re.Match[str]) -> str:
        target = _target(match["target"], source)
        if target is None or not (ROOT / target).exists():
            return match[0]
        return posixpath.relpath(_in_site(target), posixpath.dirname(source) or ".") + (match["rest"] or "")

    return "".join(part if part.startswith("```") else LINK.sub(inside, part) for part in FENCE.split(markdown))


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show the description of a picture as its caption."""
    figure = r"<figure>\g<0><figcaption>\1</figcaption></figure>"
    return PICTURES.sub(lambda match: PICTURE.sub(figure, match[1]), html)


def _readme_section(title: str) -> str:
    """A section of the README without its title, with links as from ``docs/``."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    if not section:
        raise ValueError(f"the README has no section {title}")
    return LINK.sub(lambda match: posixpath.relpath(match["target"], "docs") + (match["rest"] or ""), section)


def _undescribed() -> list[str]:
    """The public names that the pages of the reference do not name."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    tree = ast.parse((ROOT / "src" / "selfish_rnn" / "__init__.py").read_text(encoding="utf-8"))
    (public,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return [name for name in public if not re.search(rf"(selfish_rnn\.|`){name}\b", text)]


def _named(nav: list[Any] | dict[str, Any] | str) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from _named(entry)


def _outside_links(markdown: str, source: str) -> Iterator[str]:
    """Return the linked files of a page that are outside docs/."""
    for part in FENCE.split(markdown):
        if not part.startswith("```"):
            result = (_target(match["target"], source) for match in LINK.finditer(part))
            yield from (target for target in result if target is not None and _in_site(target) == _copy(target))


def _target(link: str, source: str) -> str | None:
    """The path in the repository that a link on a page names; none if it leads out of it."""
    if re.match(r"[a-z]+:", link):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(_origin(source)), link))
    return None if path.startswith("..") else path


def _origin(source: str) -> str:
    """The file in the repository that a page of the site is made from."""
    local = {page: name for name, page in PAGES.items() if name != "README.md"}
    if source.startswith(f"{COPIES}/"):
        return source.removeprefix(f"{COPIES}/")
    return local.get(source, f"docs/{source}")


def _in_site(target: str) -> str:
    """Return the address of a file or folder of the repository in the site."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return PAGES.get(target) or _copy(target)


def _copy(target: str) -> str:
    """Return the address of the copy of a file, or of the page of a folder or text."""
    if (ROOT / target).is_dir():
        return f"{COPIES}/{target}/index.md"
    return f"{COPIES}/{target}.md" if target.endswith(SHOWN_AS_TEXT) else f"{COPIES}/{target}"


def _listing(target: str, inside: list[Path]) -> str:
    lines = [f"# {target}", ""]
    for entry in inside[:MOST_LISTED]:
        lines.append(f"- [{entry.name}{'/' if entry.is_dir() else ''}]({entry.name})")
    return "\n".join(lines) + "\n"


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _private(path: Path) -> bool:
    return path.name.startswith((".", "__")) or path.suffix in (".so", ".pyc") or path.name.endswith(".egg-info")
