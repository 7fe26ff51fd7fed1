"""Adds to the site what no file in docs/ holds: the reference, README.md, and the other files of the navigation.

mkdocs calls these functions while it builds (`hooks` in mkdocs.yml). A file of the repository that a page links to gets
a page of its own, and a link to a folder becomes its path, so the site needs no other host.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs._build.reference import PAGES

ROOT = Path(__file__).parents[2]

FILES = {"README.md": "index.md"} | {
    name: f"files/{name}" for name in ("CHANGELOG.md", "CONTRIBUTING.md", "conf/README.md", "deploy/README.md")
}
"""Path in the repository -> path in the site."""

WITHOUT_SIDEBARS = "---\nhide: [navigation, toc]\n---\n"

LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")
_FENCE = re.compile(r"(^ *```.*?^ *```)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the reference pages, the files of the repository that the navigation lists, and README's pictures."""
    for name, make in PAGES.items():
        files.append(File.generated(config, name, content=make()))
    for name, place in FILES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=WITHOUT_SIDEBARS + text if place == "index.md" else text))
    for name in sorted(linked_files()):
        if name not in FILES:
            text = (ROOT / name).read_text(encoding="utf-8")
            listing = text if name.endswith(".md") else f"````{Path(name).suffix[1:]}\n{text}\n````"
            FILES[name] = f"files/{name if name.endswith('.md') else f'{name}.md'}"
            files.append(File.generated(config, FILES[name], content=f"# `{name}`\n\n{listing}"))
    for figure in ROOT.glob("experiments/*/figures/*.svg"):
        files.append(File.generated(config, figure.relative_to(ROOT).as_posix(), abs_src_path=str(figure)))
    return files


def linked_files() -> Iterator[str]:
    """The files outside of docs/ to which a page links, other than pictures."""
    for page in (*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in FILES)):
        for link in LINK.finditer("".join(_FENCE.split(page.read_text(encoding="utf-8"))[::2])):
            target = (page.parent / link["target"]).resolve()
            if target.is_file() and not target.is_relative_to(ROOT / "docs") and target.suffix != ".svg":
                yield target.relative_to(ROOT).as_posix()


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the page's links to files of the repository."""
    place = page.file.src_uri
    source = next((name for name in FILES if FILES[name] == place), f"docs/{place}")
    parts = _FENCE.split(markdown)
    parts[::2] = [LINK.sub(lambda link: _rewritten(link, source, place, files), part) for part in parts[::2]]
    return "".join(parts)


def _rewritten(link: "re.Match[str]", source: str, place: str, files: Files) -> str:
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link["target"]))
    for name in (path, f"{path}/README.md"):
        target = FILES.get(name, name.removeprefix("docs/"))
        if files.get_file_from_path(target):
            address = posixpath.relpath(target, posixpath.dirname(place) or ".")
            return f"{link['image']}[{link['text']}]({address}{link['anchor'] or ''})"
    if not (ROOT / path).exists():
        return link[0]  # mkdocs reports it
    return link["text"] if path in link["text"] else f"{link['text']} (`{path}`)"
