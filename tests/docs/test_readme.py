"""README is a first screen, and its badges and its citation are true."""

import re
import subprocess
import tomllib

import yaml

from benchmarks.default_run import RECORD
from stages.formats.reports import read_json
from tests.small_project import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
DEFAULT_RUN = "\n".join(read_json(RECORD)["ended_with"])
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
    assert len(shown) == 10


def test_it_shows_the_end_of_the_default_run_on_record_and_pages_have_its_figures() -> None:
    took = dict(re.findall(r"^(\w+) +ran +([\d.]+)$", DEFAULT_RUN, re.MULTILINE))
    forecast = re.findall(r"^(\w+) +(?:run|maybe)  .* (\d+) s$", README, re.MULTILINE)

    assert f"```\n{DEFAULT_RUN}\n```" in README
    assert f"On {read_json(RECORD)['machine']}, it ends like this" in README
    assert len(forecast) > 5
    assert {stage: int(seconds) for stage, seconds in forecast} == {
        stage: round(float(took[stage])) for stage, _ in forecast
    }
    page = (ROOT / "docs/explanation/recipe.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"it ends at ([\d.]+) bits per byte", page)
    assert said in DEFAULT_RUN


def test_every_file_that_it_names_is_there() -> None:
    named = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README)

    assert len(named) > 8
    assert [path for path in named if not (ROOT / path).exists()] == []
