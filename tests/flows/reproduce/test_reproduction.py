"""Published revisions of a small real project, reproduced: what is found, and what is said where something differs."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
from ruamel.yaml import YAML

from flows.reproduce.reproduction import run_reproduction
from stages.formats.revision.provenance import EVALUATION, RECORDED_LOCK
from stages.runtime.atomic import file_md5
from stages.runtime.errors import EXIT_CONTINUE, UserError
from stages.runtime.stage_code import code_in
from tests.flows.reproduce.published import seal, write_revision
from tests.flows.reproduce.small_training import commit, make_training
from tests.flows.small_pipeline import run
from tests.flows.toy import git, repro
from tests.small_project import ROOT
from tests.waiting import wait_until, wait_until_ended


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        return make_training(tmp_path_factory.mktemp("training") / "project")


@pytest.fixture(scope="module")
def published(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_revision(project, tmp_path_factory.mktemp("published") / "main")


@pytest.fixture
def revision(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One's own copy of the published revision; the current folder is an empty one."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    shutil.copytree(published, tmp_path / "main")
    return tmp_path / "main"


def test_a_revision_is_bit_identical_in_another_folder_and_the_same_command_has_nothing_more_to_compute(
    project: Path, revision: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reproduce = partial(run_reproduction, str(revision), yes=True)
    opened: list[str] = []
    sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)

    assert reproduce() == 0
    # Its first line, which could be a pointer of Git LFS; then all of it, once.
    assert opened.count(str(revision / "model.safetensors")) == 2
    assert len([path for path in opened if path.endswith("checkout/model/model.safetensors")]) <= 2
    said = capfd.readouterr().out
    assert "\nrunning      train\n" in said
    assert "\nbit-identical: " in said
    assert f"commit {commit(project)}; every file as the stages read it, in " in said

    assert reproduce() == 0
    said = capfd.readouterr().out
    assert "\nrunning " not in said
    assert "\nbit-identical: " in said


def test_another_number_of_threads_is_listed_and_the_first_differing_step_too(
    project: Path, revision: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTHER_MACHINE", "7")

    assert run_reproduction(str(revision), yes=True) == 0

    said = capfd.readouterr().out
    assert "\nequal within intervals: " in said
    assert "first difference: train: model/model.safetensors: bias: recorded " in said
    assert "2 of 2 tensors differ" in said
    assert re.search(r"reports/curves/loss\.tsv: loss at \d: recorded ", said)
    assert "\ndiffers: threads_per_process: recorded 2, here 7\n" in said


@pytest.mark.parametrize(("stage", "unmade"), [("train", "config.json"), ("evaluate", "record/reports/evaluate.json")])
def test_a_record_without_the_stage_of_a_published_file_is_refused(revision: Path, stage: str, unmade: str) -> None:
    lock = YAML(typ="safe", pure=True).load(revision / RECORDED_LOCK)
    lock["stages"][stage]["outs"] = []
    YAML(typ="safe").dump(lock, revision / RECORDED_LOCK)
    seal(revision)

    with pytest.raises(UserError, match=rf"no stage in record/dvc\.lock makes {unmade}"):
        run_reproduction(str(revision))


def test_an_evaluation_forged_everywhere_is_found_by_computing_it_although_it_lies_within_its_interval(
    project: Path, revision: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = hashlib.md5((revision / EVALUATION).read_bytes()).hexdigest()
    report = json.loads((revision / EVALUATION).read_text())
    (revision / EVALUATION).write_text(json.dumps(report | {"bits_per_byte": report["bits_per_byte"] - 0.01}))
    after = hashlib.md5((revision / EVALUATION).read_bytes()).hexdigest()
    lock = (revision / RECORDED_LOCK).read_text()
    assert before in lock
    (revision / RECORDED_LOCK).write_text(lock.replace(before, after))
    seal(revision)

    assert run_reproduction(str(revision), yes=True) == 1

    said = capfd.readouterr().out
    assert "\nnot reproduced: " in said
    assert "first difference: evaluate: reports/evaluate.json: bits_per_byte: recorded " in said


def test_code_that_is_not_as_it_ran_is_named_before_the_question(revision: Path) -> None:
    code = revision / "record/data/code/train.json"
    before = code_in(code)
    assert before is not None
    code.write_text(replace(before, files=before.files | {"stages/train/__main__.py": "a" * 32}).text)
    seal(revision)

    with pytest.raises(UserError, match=r"data/code/train\.json: stages/train/__main__\.py modified: the revision"):
        run_reproduction(str(revision))
    shutil.rmtree(code.parents[1])
    seal(revision)
    with pytest.raises(UserError, match=r"data/code/train\.json: is missing: the revision"):
        run_reproduction(str(revision))


def until_it_trains(revision: Path, hold: Path) -> "subprocess.Popen[str]":
    """Start a reproduction, and wait until its training has begun. It continues when `hold` is gone."""
    hold.touch()
    command = [sys.executable, "-m", "flows.cli", "reproduce", str(revision), "--yes"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HOLD": str(hold)}
    process = subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    wait_until(lambda: Path(f"{hold}.reached").exists() or process.poll() is not None)
    assert process.poll() is None
    return process


def test_a_reproduction_that_was_killed_continues_after_the_stages_that_were_done(
    project: Path, revision: Path, tmp_path: Path
) -> None:
    killed = until_it_trains(revision, tmp_path / "hold")
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    (tmp_path / "hold").unlink()

    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(killed.args, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"\nrunning +(\w+)", done.stdout) == ["train", "evaluate"]
    assert "\nbit-identical: " in done.stdout


def test_data_that_a_dvc_remote_has_is_pulled_and_computed_only_from_scratch(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(project, mine)
    run([sys.executable, "-m", "dvc", "remote", "add", "-d", "store", str(tmp_path / "store")], mine)
    git(mine, "commit", "-qam", "a remote")
    run([sys.executable, "-m", "dvc", "push", "-q"], mine)
    write_revision(mine, tmp_path / "main")
    monkeypatch.chdir(tmp_path)

    assert run_reproduction("main", yes=True) == 0
    said = capfd.readouterr().out
    assert "restored: data" in said
    assert "Running stage 'data'" not in said
    assert "data      restored" in said
    assert "\nbit-identical: " in said
    with pytest.raises(UserError, match=r"was started with another revision or another choice of"):
        run_reproduction("main", yes=True, from_scratch=True)


@pytest.fixture
def other_data(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A project whose corpus git ignores, and its revision."""
    mine = tmp_path / "mine"
    shutil.copytree(project, mine)
    git(mine, "rm", "-q", "--cached", "corpus.txt")
    with (mine / ".gitignore").open("a") as ignored:
        ignored.write("/corpus.txt\n")
    (mine / "corpus.txt").write_text("1.5 2.5 3.5")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    repro(mine)
    return mine, write_revision(mine, tmp_path / "main")


def test_an_input_that_changed_here_is_no_obstacle_if_what_was_made_of_it_is_restored(
    project: Path,
    tmp_path: Path,
    other_data: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    mine, revision = other_data
    (mine / "corpus.txt").write_text("1.5 2.5 3.5 4.5")
    monkeypatch.chdir(mine)
    reproduce = partial(run_reproduction, str(revision), yes=True)

    assert reproduce() == 0
    assert reproduce() == 0

    said = capfd.readouterr().out
    assert "restored: data" in said
    assert said.count("\nbit-identical: ") == 2
    with pytest.raises(UserError, match=r"corpus\.txt: stage data read it \(md5 "):
        reproduce(from_scratch=True, folder=tmp_path / "work")


def test_missing_input_data_is_named_before_an_environment_is_made_and_the_user_puts_it_into_the_checkout(
    project: Path,
    tmp_path: Path,
    other_data: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    mine, _ = other_data
    monkeypatch.chdir(tmp_path)
    reproduce = partial(run_reproduction, "main", yes=True, folder=tmp_path / "work")
    there, md5 = tmp_path / "work/checkout/corpus.txt", file_md5(mine / "corpus.txt")

    with pytest.raises(UserError, match=rf"corpus\.txt: .*\(md5 {md5}\), .*; put it at {there} and run the same"):
        reproduce()
    assert not (tmp_path / "work/venv").exists()
    shutil.copyfile(mine / "corpus.txt", there)

    assert reproduce() == 0
    assert "\nbit-identical: " in capfd.readouterr().out


def test_a_segment_is_named_by_two_steps(revision: Path) -> None:
    with pytest.raises(UserError, match=r"--segment 2: expected FROM-TO in steps, e\.g\. 0-100"):
        run_reproduction(str(revision), segment="2")


def test_sigterm_reaches_the_stage_and_not_dvc_which_would_leave_it_running(
    project: Path, revision: Path, tmp_path: Path
) -> None:
    process = until_it_trains(revision, tmp_path / "hold")
    below = psutil.Process(process.pid).children(recursive=True)

    process.terminate()

    process.communicate()
    assert process.returncode == EXIT_CONTINUE
    assert len(below) >= 2
    wait_until_ended(below)
