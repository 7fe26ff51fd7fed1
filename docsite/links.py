"""Links of a page to files of the repository: each such file becomes a page or a file of the site.

So the site needs no other host, and shows the files of the commit that it was built from.
"""

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
DOCS = PurePosixPath("docs")

HOME = "index.md"
"""README.md is the site's first page."""

_LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(?=\))")
_FENCE = re.compile(r"^ *(```|~~~)")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".jinja": "jinja", ".sbatch": "bash"}
_SHOWN_AS_THEY_ARE = (".png", ".svg", ".pdf")


def targets(markdown: str, place: PurePosixPath) -> Iterator[PurePosixPath]:
    """The files and folders, by their paths in the repository, that a file at `place` links to."""
    found: list[PurePosixPath] = []

    def note(path: PurePosixPath) -> str:
        found.append(path)
        return ""

    _replaced(markdown, place, note)
    yield from found


def rewritten(markdown: str, place: PurePosixPath, page: PurePosixPath) -> str:
    """The text of the file at `place` of the repository, with links that hold from `page` of the site."""

    def address(path: PurePosixPath) -> str:
        return posixpath.relpath(in_site(path), page.parent)

    return _replaced(markdown, place, address)


def _replaced(markdown: str, place: PurePosixPath, address: Callable[[PurePosixPath], str]) -> str:
    lines, in_fence = [], False
    for line in markdown.splitlines():
        if _FENCE.match(line):
            in_fence = not in_fence
        lines.append(line if in_fence else _LINK.sub(lambda link: _one(link, place, address), line))
    return "\n".join(lines)


def _one(link: "re.Match[str]", place: PurePosixPath, address: Callable[[PurePosixPath], str]) -> str:
    path = PurePosixPath(posixpath.normpath(place.parent / link["target"]))
    return f"{address(path)}{link['anchor'] or ''}"


def in_site(path: PurePosixPath) -> PurePosixPath:
    """Where in the site a file of the repository is."""
    if path == PurePosixPath("README.md"):
        return PurePosixPath(HOME)
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS)
    if (ROOT / path / "README.md").is_file():
        return in_site(path / "README.md")
    visible = PurePosixPath("files", *(part.lstrip(".") for part in path.parts))
    if (ROOT / path).is_dir():
        return visible / "index.md"
    return visible if path.suffix in (".md", *_SHOWN_AS_THEY_ARE) else visible.with_name(f"{visible.name}.md")


def page_of(path: PurePosixPath) -> str:
    """What the site shows of a file or folder of the repository. A Markdown file is shown as itself."""
    file = ROOT / path
    if (file / "README.md").is_file():
        return page_of(path / "README.md")
    if file.is_dir():
        inside = sorted(child.name + ("/" if child.is_dir() else "") for child in file.iterdir() if _shown(child))
        return "\n".join([f"# {path}/", "", *(f"- `{name}`" for name in inside)])
    text = file.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return rewritten(text, path, in_site(path))
    head = ["---", "search:", "  exclude: true", "---", f"# {path.name}", "", f"`{path}`", ""]
    return "\n".join([*head, f"``````{_LANGUAGES.get(path.suffix, 'text')}", text.rstrip(), "``````", ""])


def _shown(path: Path) -> bool:
    return path.name != "__pycache__" and not path.name.startswith(".")
