"""A change of code without effect, accepted by `parrotflow accept`, with the reason kept."""

import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml

from flows.dvc_repo.lock_file import guard
from flows.plan.graph import make_plan
from flows.project import accept as accepting
from flows.project.accept import accept, drop_entries, drop_expired, undo
from stages.formats.accepted import read_accepted
from stages.runtime.entry import UserError
from tests.flows.toy import make_toy, repro

DVC_YAML = """\
stages:
  make:
    cmd: python make.py
    deps: [make.py]
    params: [small]
    outs: [made.txt]
  use:
    cmd: cp made.txt used.txt
    deps: [made.txt]
    outs: [used.txt]
"""

CODE = '"""Makes."""\n\n\ndef main() -> None:\n    """Write it."""\n    open("made.txt", "w").write("1")\n\n\nmain()\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline that is up to date, committed."""
    folder = make_toy(tmp_path / "toy", DVC_YAML)
    (folder / "make.py").write_text(CODE)
    (folder / "params.yaml").write_text("small: 1e-08\n")
    repro(folder)
    monkeypatch.chdir(folder)
    for command in (["add", "-A"], ["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "start"]):
        subprocess.run(["git", *command], check=True)
    subprocess.run(["git", "config", "user.name", "Ada"], check=True)
    return folder


def reason_to_run() -> str:
    return next(stage.why for stage in make_plan() if stage.name == "make")


def test_an_accepted_stage_is_up_to_date_and_the_ledger_says_why(project: Path) -> None:
    (project / "make.py").write_text(CODE + "# more\n")

    command = [sys.executable, "-m", "flows.cli", "accept", "make", "--because", "a comment"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert said == "make is accepted as up to date; accepted.yaml says why. Commit it with dvc.lock.\n"
    assert not make_plan().to_do
    assert "Running" not in repro(project)
    entry = yaml.safe_load((project / "accepted.yaml").read_text())[-1]
    assert {name: entry[name] for name in ("stage", "because", "changes", "by")} == {
        "stage": "make",
        "because": "a comment",
        "changes": ["make.py modified"],
        "by": "Ada",
    }

    (project / "make.py").write_text(CODE.replace("1", "1 "))
    accept("make", "a judgement")
    drop_expired()
    assert [entry.because for entry in read_accepted()] == ["a comment", "a judgement"]  # the result rests on both


def test_what_cannot_be_accepted_is_refused(project: Path) -> None:
    with pytest.raises(UserError, match="make is up to date; there is nothing to accept"):
        accept("make", "why not")
    (project / "make.py").write_text(CODE + "# more\n")
    with pytest.raises(UserError, match="accept: say why"):
        accept("make", " ")
    with pytest.raises(UserError, match="use: make is not up to date; run or accept that first"):
        accept("use", "because")
    (project / "used.txt").unlink()
    (project / "used.txt").write_text("other")
    (project / "make.py").write_text(CODE)
    with pytest.raises(UserError, match=r"use: used.txt modified: its result is not the one that was computed"):
        accept("use", "because")
    (project / "dvc.lock").unlink()
    with pytest.raises(UserError, match="make has never run; there is no result to accept"):
        accept("make", "because")


def test_a_frozen_stage_is_not_accepted_since_the_plan_leaves_out_its_changes(project: Path) -> None:
    before = (project / "dvc.lock").read_text()
    (project / "dvc.yaml").write_text(DVC_YAML.replace("cmd: python make.py", "cmd: python  make.py\n    frozen: true"))
    (project / "make.py").write_text(CODE.replace("1", "2"))
    assert reason_to_run() == "its command changed"

    with pytest.raises(UserError, match="make is frozen: `dvc unfreeze make`"):
        accept("make", "two spaces")
    assert (project / "dvc.lock").read_text() == before
    assert not (project / "accepted.yaml").exists()


def test_a_stage_that_reads_the_ledger_is_not_accepted_since_its_entry_would_make_it_run(project: Path) -> None:
    (project / "accepted.yaml").write_text("[]\n")
    (project / "dvc.yaml").write_text(DVC_YAML.replace("deps: [made.txt]", "deps: [made.txt, accepted.yaml]"))
    repro(project)
    (project / "dvc.yaml").write_text((project / "dvc.yaml").read_text().replace("cp made.txt", "cp  made.txt"))

    with pytest.raises(UserError, match=r"^use reads accepted\.yaml, so what is accepted makes it run: run it$"):
        accept("use", "two spaces")
    assert read_accepted() == []


CHANGED = CODE.replace("1", "1 ")


def test_what_was_accepted_is_taken_back(project: Path) -> None:
    (project / "make.py").write_text(CHANGED)
    accept("make", "a judgement")

    said = subprocess.check_output([sys.executable, "-m", "flows.cli", "accept", "make", "--undo"], text=True)

    assert said.startswith("make is no longer accepted as up to date")
    assert read_accepted() == []
    assert "Running stage 'make'" in repro(project)
    assert (project / "used.txt").read_text() == "1 "
    with pytest.raises(UserError, match="make: nothing is accepted"):
        undo("make")


def test_what_was_accepted_is_taken_back_also_where_dvc_lock_is_gone(project: Path) -> None:
    (project / "make.py").write_text(CHANGED)
    accept("make", "a judgement")
    (project / "dvc.lock").unlink()

    undo("make")

    assert read_accepted() == []


def test_a_result_that_was_really_computed_since_outlives_the_undoing_of_what_was_accepted(project: Path) -> None:
    (project / "make.py").write_text(CHANGED)
    accept("make", "a judgement")
    (project / "make.py").write_text(CODE.replace("1", "2"))
    repro(project)

    undo("make")

    assert read_accepted() == []
    assert not make_plan().to_do


def test_what_was_accepted_is_never_restored_as_if_it_was_computed(project: Path) -> None:
    (project / "make.py").write_text(CHANGED)
    accept("make", "a judgement")
    subprocess.run(["git", "checkout", "-q", "dvc.lock"], check=True)
    (project / "accepted.yaml").unlink()

    assert reason_to_run() == "make.py modified"
    assert "Running stage 'make'" in repro(project)
    assert (project / "made.txt").read_text() == "1 "


def test_an_entry_goes_when_the_stage_really_runs(project: Path) -> None:
    (project / "make.py").write_text(CHANGED)
    accept("make", "a judgement")
    drop_expired()
    assert len(read_accepted()) == 1

    (project / "make.py").write_text(CODE.replace("1", "2"))
    repro(project)
    drop_expired()
    assert read_accepted() == []

    (project / "make.py").write_text(CODE.replace("1", "2") + "# more\n")
    accept("make", "a comment")
    drop_entries("use")
    assert len(read_accepted()) == 1
    drop_entries("make")
    assert read_accepted() == []


def test_a_kill_between_ledger_and_lock_leaves_nothing_accepted(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(name: str, prepare: object, before_writing: Callable[[dict[str, object]], None]) -> None:
        before_writing({"cmd": "what dvc.lock would have held"})
        raise KeyboardInterrupt

    (project / "make.py").write_text(CHANGED)
    monkeypatch.setattr(accepting, "record_inputs", killed)
    with pytest.raises(KeyboardInterrupt):
        accept("make", "a judgement")

    assert read_accepted()[0].because == "a judgement"
    assert reason_to_run() == "make.py modified"
    drop_expired()
    assert read_accepted() == []


def test_a_later_stage_of_the_same_run_finds_the_entry_gone(project: Path) -> None:
    (project / "make.py").write_text(CHANGED)
    accept("make", "a judgement")
    (project / "dvc.yaml").write_text(DVC_YAML.replace("cp made.txt used.txt", "cp accepted.yaml used.txt"))
    (project / "make.py").write_text(CODE.replace("1", "2"))

    done = subprocess.run([sys.executable, "-m", "flows.cli", "run"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "a judgement" not in (project / "used.txt").read_text()
    assert read_accepted() == []


def test_a_later_stage_finds_the_entry_gone_where_a_computed_result_is_restored(project: Path) -> None:
    (project / "dvc.yaml").write_text(DVC_YAML.replace("cp made.txt used.txt", "cp accepted.yaml used.txt"))
    dvc_yaml = (project / "dvc.yaml").read_text()
    (project / "dvc.yaml").write_text(dvc_yaml.replace("deps: [made.txt]", "deps: [made.txt, accepted.yaml]"))
    (project / "make.py").write_text(CHANGED)
    accept("make", "a judgement")
    repro(project)
    assert "a judgement" in (project / "used.txt").read_text()

    (project / "make.py").write_text(CODE)
    done = subprocess.run([sys.executable, "-m", "flows.cli", "run"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "restored" in done.stdout
    assert "a judgement" not in (project / "used.txt").read_text()
    assert not make_plan().to_do


def test_a_name_of_many_stages_is_refused(project: Path) -> None:
    many = "foreach: [a, b], do: {cmd: 'cp make.py ${item}', deps: [make.py], outs: ['${item}']}"
    (project / "dvc.yaml").write_text(f"stages:\n  many: {{{many}}}\n")

    with pytest.raises(UserError, match="many: this is not the name of one stage; there are many@a, many@b"):
        accept("many", "because")


def test_files_that_a_merge_has_left_are_told(project: Path) -> None:
    (project / "make.py").write_text(CHANGED)
    accept("make", "a judgement")
    written = (project / "accepted.yaml").read_text()

    for left in ("<<<<<<< HEAD\n- a\n=======\n", "- make\n", "make: a judgement\n"):
        (project / "accepted.yaml").write_text(left)
        with pytest.raises(UserError, match=r"accepted\.yaml: not a list of entries"):
            drop_expired()
    (project / "accepted.yaml").write_text(written)
    (project / "dvc.lock").write_text("<<<<<<< HEAD\nstages: {}\n")
    with pytest.raises(UserError, match=r"unable to read: 'dvc.lock'.*; `git checkout dvc.lock` brings"):
        drop_expired()
    assert (project / "accepted.yaml").read_text() == written


@pytest.mark.parametrize("work", [drop_expired, partial(undo, "make")])
def test_dvc_lock_is_read_and_changed_only_while_no_dvc_writes_it(project: Path, work: Callable[[], None]) -> None:
    (project / "make.py").write_text(CHANGED)
    accept("make", "a judgement")
    text = (project / "dvc.lock").read_text()
    with guard(project, "lock"):
        (project / "dvc.lock").write_text("")  # as DVC opens it
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(1)
        (project / "dvc.lock").write_text(text)
    thread.join()

    assert "use:" in (project / "dvc.lock").read_text()
    assert bool(read_accepted()) == ("make:" in (project / "dvc.lock").read_text())
