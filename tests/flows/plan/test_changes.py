"""The plan of a pipeline whose stages depend on their code: exact before the stage that records it has run."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.plan.changes import Reason
from flows.plan.graph import make_plan
from stages.runtime.errors import UserError
from tests.flows.toy import dvc, make_toy, repro
from tests.small_project import ROOT

DVC_YAML = """\
stages:
  code: {cmd: python -m stages.code, deps: [requirements.lock, stages], outs: [data/code]}
  make: {cmd: python -m stages.make, deps: [data/code/make.json], outs: [made.txt]}
  use: {cmd: python -m stages.use, deps: [made.txt, data/code/use.json], outs: [used.txt]}
  alone: {cmd: python -m stages.alone, deps: [data/code/alone.json], outs: [alone.txt]}
"""

MAIN = "import stages.{0}.own\nopen('{1}.txt', 'w').write('1')\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three packages and their code, up to date."""
    folder = make_toy(tmp_path / "toy", DVC_YAML)
    for name in ("code", "runtime"):
        shutil.copytree(ROOT / "stages" / name, folder / "stages" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, out in (("make", "made"), ("use", "used"), ("alone", "alone")):
        (folder / "stages" / name).mkdir()
        (folder / "stages" / name / "__main__.py").write_text(MAIN.format(name, out))
        (folder / "stages" / name / "own.py").write_text("import numpy\n" if name == "make" else "X = 1\n")
    (folder / "stages/__init__.py").touch()
    (folder / "requirements.lock").write_text("numpy==1.0\n")
    (folder / ".dvcignore").write_text("__pycache__\n")
    repro(folder)
    monkeypatch.chdir(folder)
    return folder


def states() -> dict[str, str]:
    return {stage.name: stage.state for stage in make_plan() if stage.state != "up to date"}


def reasons(name: str) -> tuple[Reason, ...]:
    return next(stage.reasons for stage in make_plan() if stage.name == name)


def test_a_comment_runs_the_stage_that_records_the_code_and_nothing_else(project: Path) -> None:
    assert states() == {}
    (project / "stages/make/own.py").write_text('"""Own."""\n\nimport numpy  # a comment\n')

    assert states() == {"code": "run"}
    ran = [line for line in repro(project).splitlines() if line.startswith("Running stage")]
    assert ran == ["Running stage 'code':"]
    assert states() == {}


def test_an_edit_and_an_upgrade_are_named_and_run_the_stages_that_use_them(project: Path) -> None:
    (project / "stages/make/own.py").write_text("import numpy\nX = 2\n")
    (project / "requirements.lock").write_text("numpy==2.0\n")

    assert states() == {"code": "run", "make": "run", "use": "maybe"}
    assert reasons("make") == (
        Reason("code", "stages/make/own.py", new="modified"),
        Reason("library", "numpy", "1.0", "2.0"),
    )
    repro(project, "code")
    assert states() == {"make": "run", "use": "maybe"}
    assert len(reasons("make")) == 2

    shutil.rmtree(project / ".dvc/cache")
    assert Reason("code", "its code or a library", new="changed") in reasons("make")


def test_an_edit_that_is_taken_back_is_restored(project: Path) -> None:
    own = project / "stages/use/own.py"
    own.write_text("X = 2\n")
    repro(project)
    own.write_text("X = 1\n")

    assert states() == {"code": "restore", "use": "restore"}


def test_a_clone_without_records_finds_that_the_code_is_the_same(project: Path) -> None:
    shutil.rmtree(project / "data/code")

    assert states() == {}
    assert len(list((project / "data/code").iterdir())) > 1, "the plan has written them"


def test_code_that_is_not_python_is_named(project: Path) -> None:
    (project / "stages/use/own.py").write_text("X = (\n")

    with pytest.raises(UserError, match=r"stages/use/own.py: line 1: "):
        make_plan()


def test_dvc_commit_declares_a_stage_up_to_date_after_an_edit_without_effect(project: Path) -> None:
    (project / "stages/make/own.py").write_text("import numpy\nX = 2\n")

    dvc(project, "repro", "code")
    dvc(project, "commit", "-f", "make")

    assert states() == {}


LISTED = "stages: {list: {cmd: ls corpus > out.txt, deps: [corpus], outs: [out.txt]}}\n"


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_toy(tmp_path / "p", LISTED)
    monkeypatch.chdir(tmp_path / "p")
    Path("corpus/inner").mkdir(parents=True)
    Path("corpus/a.py").write_text("x = 1")


@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Path("corpus/inner/.#a.py").symlink_to("gone"), "'corpus/inner/.#a.py' (a broken link)"),
        (lambda: os.mkfifo("corpus/pipe"), "'corpus/pipe' (not a regular file)"),
        (lambda: Path(os.fsdecode(b"corpus/caf\xe9.py")).touch(), r"'corpus/caf\udce9.py' (its name is not UTF-8)"),
    ],
)
def test_what_dvc_cannot_hash_is_named_with_what_to_do_and_never_waited_for(
    make: Callable[[], None], told: str
) -> None:
    make()

    with pytest.raises(UserError) as refused:
        make_plan()

    assert str(refused.value) == (f"DVC cannot read {told}; remove or rename each, or add its path to .dvcignore")


@pytest.mark.usefixtures("listed")
def test_a_file_that_no_stage_makes_and_that_is_gone_is_refused_before_anything_runs() -> None:
    shutil.rmtree("corpus")

    with pytest.raises(UserError, match=r"^corpus: not found, but \w+ reads it: restore it \(`git checkout` "):
        make_plan()


def test_outputs_behind_a_link_to_another_disk_are_refused_with_what_works(project: Path, tmp_path: Path) -> None:
    (project / "data").rename(tmp_path / "disk")
    (project / "data").symlink_to(tmp_path / "disk")

    with pytest.raises(UserError, match=r"^data: is a link, and DVC caches no output .*`dvc cache dir --local"):
        make_plan()


@pytest.mark.usefixtures("listed")
def test_links_are_data_and_what_dvcignore_lists_is_not_looked_at() -> None:
    Path("corpus/same.py").symlink_to("a.py")
    Path("corpus/loop").symlink_to(".")
    Path("corpus/inner/.#a.py").symlink_to("gone")
    os.mkfifo("corpus/pipe")
    Path(".dvcignore").write_text("/corpus/**/.*\n/corpus/pipe\n")

    assert [stage.state for stage in make_plan()] == ["run"]


def test_long_values_are_cut_where_they_differ_and_an_empty_text_is_not_nothing() -> None:
    same = "data/" + "x" * 200
    shown = str(Reason("parameter", "collect.path", f"{same}/old", f"{same}/new"))

    assert "/old" in shown
    assert "/new" in shown
    assert len(shown) < 200
    many = [{"kind": "packages", "names": [f"package{number}" for number in range(54)]}]
    folder = Reason("parameter", "collect.sources", many, [{"kind": "files"}])
    assert str(folder) == 'collect.sources [{"kind": "packages", "names": 54 values}] → [{"kind": "files"}]'
    assert str(Reason("parameter", "names", [*range(11)], [*range(1, 12)])).endswith(
        "9, 10] → [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]"
    )
    assert str(Reason("parameter", "train.note", "", None)) == 'train.note "" → null'
    assert str(Reason("parameter", "train.compile", True, {"mode": None})) == 'train.compile true → {"mode": null}'
