"""The documentation site: it builds without a warning, needs no other host, and has what the code has."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from docs._build.hooks import LINK
from docs._build.reference import OF_LIBRARIES, OF_THE_PROGRAM
from flows.cli import app
from stages.runtime.section import flatten, read_params_file
from tests.small_project import ROOT

LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src", "video": "src"}
"""Tag -> the attribute whose address a browser asks for when it shows the page."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


class Loaded(HTMLParser):
    """Collects the addresses that a browser asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag in LOADED and not (tag == "link" and found.get("rel") in ("canonical", "next", "prev")):
            self.addresses.append(found.get(LOADED[tag]) or "")


def text_of(page: Path) -> str:
    return re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))


def test_a_page_loads_nothing_from_another_host(site: Path) -> None:
    loaded = Loaded()
    pages = sorted(site.rglob("*.html"))
    for page in pages:
        loaded.feed(page.read_text(encoding="utf-8"))

    assert len(pages) > 20
    assert [address for address in loaded.addresses if re.match(r"(https?:)?//", address)] == []
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_no_page_names_a_path_of_the_machine_that_built_it(site: Path) -> None:
    named = [path for path in site.rglob("*.html") if str(ROOT) in path.read_text(encoding="utf-8")]

    assert named == []


def test_the_site_has_four_parts(site: Path) -> None:
    parts = [next(iter(part)) for part in yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]]

    assert parts == ["Home", "Tutorial", "How-to", "Reference", "Explanation"]
    assert all(f">{part}<" in re.sub(r"\s+", "", (site / "index.html").read_text()) for part in parts)


def test_the_reference_has_every_parameter(site: Path) -> None:
    page = text_of(site / "reference/parameters.html")

    values = read_params_file(ROOT / "params.yaml")
    free_form = ("train.model.", "evaluate.sets.")
    keys = [key.rpartition(".")[2] for key in flatten(values) if not key.startswith(free_form)]
    assert [key for key in keys if not re.search(rf"\b{key}\b", page)] == []


def test_the_reference_has_every_command_and_its_options(site: Path) -> None:
    page = text_of(site / "reference/commands.html")

    assert [name for name in app if not name.startswith("-") and f"parrotflow {name}" not in page] == []
    assert "--force" in page
    assert "parrotflow doctor [OPTIONS]" in page


def test_the_reference_has_every_environment_variable_and_exit_code(site: Path) -> None:
    variables, codes = (text_of(site / f"reference/{name}.html") for name in ("environment-variables", "exit-codes"))

    assert [name for name in {**OF_THE_PROGRAM, **OF_LIBRARIES} if name not in variables] == []
    numbers = re.findall(r"^EXIT_\w+ = (\d+)$", (ROOT / "stages/runtime/errors.py").read_text(), re.MULTILINE)
    assert len(numbers) > 5
    assert [code for code in numbers if not re.search(rf"^{code}$", codes, re.MULTILINE)] == []


def test_a_link_leads_to_a_page_of_the_site(site: Path) -> None:
    page = (site / "how-to/publishing.html").read_text(encoding="utf-8")

    assert 'href="../files/stages/formats/revision/provenance.py.html' in page
    listing = text_of(site / "files/stages/formats/revision/provenance.py.html")
    assert "PROVENANCE = " in listing
    assert 'href="../files/CONTRIBUTING.html' in page
    assert (site / "experiments/presets/figures/bits_per_byte.svg").is_file()


def test_a_link_also_leads_to_a_file_of_a_clone() -> None:
    linked = (
        (page.parent / link["target"])
        for page in (ROOT / "docs").rglob("*.md")
        for link in LINK.finditer(page.read_text())
    )

    assert [path for path in linked if not path.exists()] == []


def test_the_pages_have_no_more_words_than_contributing_allows() -> None:
    (limit,) = re.findall(r"at most ([\d,]+) words", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    pages = sorted((ROOT / "docs").rglob("*.md"))

    assert len(pages) > 10
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= int(limit.replace(",", ""))
