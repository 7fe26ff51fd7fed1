from pathlib import Path

import pytest

from flows.plan.code_deps import stale_deps
from flows.plan.graph import make_plan
from tests.flows.toy import make_toy, repro

DVC_YAML = """\
stages:
  make:
    cmd: python -m stages.make
    deps: [stages/make/__main__.py]
    outs: [made.txt]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline of one package, up to date."""
    folder = make_toy(tmp_path / "toy", DVC_YAML)
    (folder / "stages/make").mkdir(parents=True)
    (folder / "stages/__init__.py").touch()
    (folder / "stages/make/__main__.py").write_text("open('made.txt', 'w').write('1')\n")
    repro(folder)
    monkeypatch.chdir(folder)
    return folder


def test_a_new_import_that_dvc_yaml_does_not_list_is_a_warning_of_the_plan(project: Path) -> None:
    assert make_plan().warnings == []

    (project / "stages/make/more.py").write_text("")
    (project / "stages/make/__main__.py").write_text("import stages.make.more\n")

    assert make_plan().warnings == [
        "make: not listed: stages/make/more.py: run `python -m flows.project.closure --write`"
    ]


def test_what_is_no_longer_imported_is_named_too(project: Path) -> None:
    stale = stale_deps("make", "python -m stages.make", ["data", "stages/make/__main__.py", "stages/old.py"])

    assert str(stale) == "make: no longer imported: stages/old.py"


def test_a_command_that_runs_other_code_is_left_alone(project: Path) -> None:
    assert stale_deps("make", "python make.py", ["stages/make/__main__.py"]) is None
    assert stale_deps("make", "python -m stages.nonesuch", []) is None
