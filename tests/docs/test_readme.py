"""README is a first screen, and its badges and its citation are true."""

import re
import subprocess
import tomllib

import yaml

from tests.small_project import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_it_fits_a_first_screen_or_two() -> None:
    assert len(README.splitlines()) <= 120


def test_the_badges_and_the_citation_say_what_the_project_says() -> None:
    badges = {name: (ROOT / f"docs/pictures/badge-{name}.svg").read_text() for name in ("license", "python")}
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))

    assert f">{PROJECT['license']}<" in badges["license"]
    assert f">{PROJECT['requires-python'].removeprefix('>=')}+<" in badges["python"]
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])


def test_it_shows_the_folders_at_the_top() -> None:
    shown = re.findall(r"^(\w+)/  +\S", README, re.MULTILINE)
    listed = subprocess.run(
        ["git", "ls-tree", "-d", "--name-only", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert sorted(shown) == sorted(name for name in listed.stdout.split() if not name.startswith("."))
    assert len(shown) == 11


def test_every_file_that_it_names_is_there() -> None:
    named = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README)

    assert len(named) > 8
    assert [path for path in named if not (ROOT / path).exists()] == []
