import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flows.dvc_repo.lock_file import forget, located, recorded, sort_lock_file
from flows.plan.graph import make_plan
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
