"""DVC's cache and remotes, and what stages read."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from flows.dvc_repo.cache import drop_damaged, low_space, push_results
from flows.run.stage import run_stage
from tests.flows.toy import dvc, make_toy, repro
from tests.forked import PARROTFLOW, run_forked

CACHE = Path(".dvc/cache/files/md5")


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline that ran with the source `0123456789`, then with another one."""
    folder = make_toy(tmp_path / "toy")
    repro(folder)
    (folder / "source.txt").write_text("abc\n")
    repro(folder)
    monkeypatch.chdir(folder)
    return folder


def test_the_doctor_finds_what_a_disk_has_damaged_and_dvc_would_restore(toy: Path) -> None:
    lists = [path for path in CACHE.rglob("*") if path.is_file()]
    for path in lists[:2]:
        path.chmod(0o644)
        path.write_bytes(b"wrong")

    assert {*drop_damaged()} == {toy / path for path in lists[:2]}
    assert drop_damaged() == []
    assert [path for path in lists if path.exists()] == lists[2:]


METRIC = """\
stages:
  one:
    cmd: cp source.txt one.txt && cp source.txt metric.txt
    deps: [source.txt]
    outs: [one.txt]
    metrics: [metric.txt: {cache: false}]
"""


@pytest.mark.parametrize("targets", [[], ["one"]])
def test_what_was_pushed_is_restored_elsewhere_though_git_tracks_a_metric_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, targets: list[str]
) -> None:
    folder = make_toy(tmp_path / "toy", METRIC.replace("cp source.txt metric.txt", "wc -c source.txt > metric.txt"))
    repro(folder)
    monkeypatch.chdir(folder)
    dvc(folder, "remote", "add", "-q", "-d", "store", str(tmp_path / "store"))

    push_results(targets)

    shutil.rmtree(".dvc/cache")
    for name in ("one.txt", "metric.txt", "dvc.lock"):
        Path(name).unlink()
    outcome = asyncio.run(run_stage("one", os.environ, print, options=["--pull"]))
    assert outcome.result == "restored", outcome.message
    assert Path("metric.txt").exists()


def test_a_cache_in_which_nothing_can_be_stored_ends_a_run_before_its_first_stage(toy: Path) -> None:
    dvc(toy, "cache", "dir", "--local", "/proc/no-cache")
    (toy / "source.txt").write_text("another\n")

    done = run_forked(PARROTFLOW, ["run"], toy)

    assert done.returncode == 2
    assert "DVC's cache cannot be written" in done.stderr
    assert "nothing was started" in done.stderr
    assert "started" not in done.stdout


def test_too_little_room_in_the_cache_is_a_warning_with_both_sizes(toy: Path) -> None:
    lock_file = toy / "dvc.lock"
    lock_file.write_text(lock_file.read_text().replace("size: 4\n", "size: 4000000000000000\n"))

    (warning,) = low_space(["first"])

    assert warning.endswith("what may run stored 4,000,000,000 MB the last time")
    assert low_space(["left"]) == []
