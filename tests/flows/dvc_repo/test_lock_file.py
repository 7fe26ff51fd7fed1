import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn, TextIO

import pytest
import yaml
from dvc.utils.serialize import _yaml, modify_yaml

from flows.dvc_repo.internals import lock_file_written_whole
from flows.dvc_repo.lock_file import LOCK_FILE, forget, located, recorded, sort_lock_file
from flows.plan.graph import make_plan
from tests.flows.test_pipeline import run, toy
from tests.flows.toy import make_toy, repro

DVC_YAML = "stages:\n  b: {cmd: x}\n  cell: {matrix: {x: [1]}, cmd: x}\n  a: {cmd: x}\n"
A, B, CELL = "  a:\n    cmd: x\n", "  b:\n    cmd: x\n    outs:\n    - path: b\n", "  cell@1:\n    cmd: x\n"


def write(folder: Path, *blocks: str, dvc_yaml: str = DVC_YAML) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "dvc.yaml").write_text(dvc_yaml)
    lock = folder / "dvc.lock"
    lock.write_text("schema: '2.0'\nstages:\n" + "".join(blocks))
    return lock


def test_the_lock_follows_dvc_yaml_whatever_finished_first(tmp_path: Path) -> None:
    lock = write(tmp_path, A, CELL, B)

    sort_lock_file(tmp_path / "dvc.yaml")

    assert lock.read_text() == "schema: '2.0'\nstages:\n" + B + CELL + A


def test_a_lock_in_order_is_not_touched(tmp_path: Path) -> None:
    lock = write(tmp_path, B, A)
    before = lock.stat().st_mtime_ns

    sort_lock_file(tmp_path / "dvc.yaml")

    assert lock.stat().st_mtime_ns == before


def test_each_lock_is_sorted_by_its_own_dvc_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, more = (
        write(tmp_path, A, B),
        write(tmp_path / "more", B, A, dvc_yaml="stages:\n  a: {cmd: x}\n  b: {cmd: x}\n"),
    )

    for folder in (tmp_path, tmp_path / "more"):
        sort_lock_file(folder / "dvc.yaml")

    assert list(yaml.safe_load(root.read_text())["stages"]) == ["b", "a"]
    assert list(yaml.safe_load(more.read_text())["stages"]) == ["a", "b"]


def test_a_stage_is_found_in_its_own_dvc_yaml() -> None:
    assert located("copy") == (Path("dvc.yaml"), "copy")
    assert located("more/dvc.yaml:copy@1") == (Path("more/dvc.yaml"), "copy@1")


def test_a_stage_that_is_forgotten_counts_as_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_toy(tmp_path / "toy")
    repro(folder)
    monkeypatch.chdir(folder)
    assert recorded("left")

    forget("left")

    assert recorded("left") is None
    assert {stage.name: stage.why for stage in make_plan().to_do}["left"] == "never run"
    subprocess.run([sys.executable, "-m", "dvc", "status", "-q", "first"], check=True)


def test_a_kill_while_dvc_writes_its_lock_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_toy(tmp_path / "toy")
    repro(folder)
    monkeypatch.chdir(folder)
    before = Path(LOCK_FILE).read_bytes()

    for within, after in ((lock_file_written_whole(), before), (nullcontext(), b"stages:\n")):
        with within:
            child = os.fork()
            if child == 0:
                _yaml._dump = die_in_the_middle
                with modify_yaml(LOCK_FILE):
                    pass
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert Path(LOCK_FILE).read_bytes() == after


def die_in_the_middle(content: object, stream: TextIO) -> NoReturn:
    stream.write("stages:\n")
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def test_a_lock_that_a_kill_of_plain_dvc_has_emptied_costs_nothing(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", "stages:\n  one: {cmd: echo 1 > one.txt, deps: [in.txt], outs: [one.txt]}\n")
    (folder / "in.txt").write_text("1\n")
    assert run(folder).returncode == 0
    whole = (folder / LOCK_FILE).read_bytes()
    (folder / LOCK_FILE).write_bytes(b"")

    done = run(folder)

    assert done.returncode == 0, done.stdout
    assert "restored" in done.stdout
    assert (folder / LOCK_FILE).read_bytes() == whole


def test_a_lock_that_is_no_yaml_is_named_with_the_remedy(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", "stages:\n  one: {cmd: echo 1 > one.txt, outs: [one.txt]}\n")
    for text in ("stages: [", "schema: '2.0'\nstages:\n  one:\n    cm"):
        (folder / LOCK_FILE).write_text(text)

        done = run(folder)

        assert done.returncode == 2
        assert "git checkout dvc.lock" in done.stderr
        assert "Traceback" not in done.stderr
