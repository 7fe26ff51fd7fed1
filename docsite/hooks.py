"""What mkdocs calls while it builds the site (`hooks` in mkdocs.yml): adds the pages that no file in docs/ holds."""

from pathlib import PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docsite.links import DOCS, HOME, ROOT, in_site, page_of, rewritten, targets
from docsite.pages import PAGES

IN_NAVIGATION = ("CHANGELOG.md", "CONTRIBUTING.md", "conf/README.md", "deploy/README.md")
"""Files outside of docs/ that mkdocs.yml lists, whether a page links to them or not."""

WITHOUT_SIDES = "---\nhide: [navigation, toc]\n---\n"
"""Of the first page: it is for those who do not know yet where to go."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the reference, the first page, and every file of the repository that a page links to."""
    for name, make in PAGES.items():
        _add(files, config, name, make())
    readme = PurePosixPath("README.md")
    _add(files, config, HOME, f"{WITHOUT_SIDES}{page_of(readme)}")
    open_links = list(map(PurePosixPath, IN_NAVIGATION))
    for page in list(files.documentation_pages()):
        open_links += targets(page.content_string, DOCS / page.src_uri)
    open_links += targets((ROOT / readme).read_text(encoding="utf-8"), readme)
    for path in open_links:
        place = in_site(path)
        if path.is_relative_to(DOCS) or str(place) in files.src_uris or not (ROOT / path).exists():
            continue
        if place.suffix != ".md":
            files.append(File.generated(config, str(place), abs_src_path=str(ROOT / path)))
            continue
        _add(files, config, str(place), page_of(path))
        if path.suffix == ".md":
            open_links += targets((ROOT / path).read_text(encoding="utf-8"), path)
    return files


def _add(files: Files, config: MkDocsConfig, name: str, text: str) -> None:
    files.append(File.generated(config, name, content=text))


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files of the repository lead to their pages."""
    name = PurePosixPath(page.file.src_uri)
    if page.file.src_uri == HOME or name.parts[0] == "files":
        return markdown  # made with links that hold
    return rewritten(markdown, DOCS / name, name)
