"""Where DVC does not do what this project needs, what a kill leaves torn, and the cache."""

import asyncio
import contextlib
import errno
import os
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from dvc.lock import make_lock

from flows.dvc_repo import (
    DVC_TMP,
    asking_remote,
    drop_damaged,
    fetch_result,
    fetch_run_cache,
    open_repo,
    push_results,
    repair_after_kill,
)
from flows.run.dvc_child import SINGLE
from flows.run.dvc_process import run_repro
from flows.run.outcome import StageOutcome
from stages.runtime.atomic import file_md5
from stages.runtime.errors import UnavailableError, UserError
from stages.runtime.preflight import LOCK_FILE
from tests.flows.test_pipeline import run, toy
from tests.flows.toy import dvc, make_toy, repro
from tests.small_project import PARROTFLOW, run_module


def test_a_full_disk_is_one_kind_of_error_whoever_meets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_toy(tmp_path / "toy"))

    with contextlib.closing(sqlite3.connect(tmp_path / "small")) as small:
        small.execute("PRAGMA max_page_count = 1")
        with pytest.raises(OSError, match="No space left") as raised, open_repo():
            small.execute("CREATE TABLE files (hash TEXT)")

    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(sqlite3.OperationalError), open_repo():
        raise sqlite3.OperationalError("no such table")


def test_a_copy_without_git_is_refused_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_toy(tmp_path / "toy"))
    shutil.rmtree(".git")

    with pytest.raises(UserError, match="is not a git repository; clone the project"), open_repo():
        pass
    shutil.rmtree(".dvc")
    with pytest.raises(UserError, match="run this from the project's root"), open_repo():
        pass


ONE = "stages:\n  one: {cmd: cp source.txt one.txt, deps: [source.txt], outs: [one.txt]}\n"


def test_an_empty_lock_costs_nothing(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", ONE)
    assert run(folder).returncode == 0
    whole = (folder / LOCK_FILE).read_bytes()
    (folder / LOCK_FILE).write_bytes(b"")

    done = run(folder)

    assert done.returncode == 0, done.stdout
    assert "restored" in done.stdout
    assert (folder / LOCK_FILE).read_bytes() == whole


def test_a_lock_that_plain_dvc_is_just_writing_stays(tmp_path: Path) -> None:
    folder = make_toy(tmp_path / "toy")
    repro(folder)
    lock, tmp = folder / LOCK_FILE, str(folder / DVC_TMP)
    text = lock.read_text()
    with make_lock(f"{tmp}/lock", tmp_dir=tmp, wait=True):
        lock.write_text("")  # as DVC opens it
        repair = threading.Thread(target=repair_after_kill, args=[folder])
        repair.start()
        repair.join(1)
        assert lock.exists()
        lock.write_text(text)
    repair.join()

    assert lock.read_text() == text


def test_a_lock_that_is_no_yaml_is_named_with_the_remedy(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", ONE)
    (folder / LOCK_FILE).write_text("stages: [")

    done = run(folder)

    assert done.returncode == 2
    assert "; `git checkout dvc.lock` restores" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_torn_table_is_removed_by_a_run_so_that_dvc_works_again(tmp_path: Path) -> None:
    project = toy(tmp_path / "toy", ONE)
    (project / DVC_TMP / "rwlock").write_text('{"write": {"/a"')
    with pytest.raises(subprocess.CalledProcessError):
        repro(project)

    done = run(project)

    assert done.returncode == 0, done.stdout
    assert "nothing is lost" in done.stdout
    assert "up to date" in repro(project)


CACHE = Path(".dvc/cache/files/md5")


@pytest.fixture
def ran_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline that ran with the source `0123456789`, then with another one."""
    folder = make_toy(tmp_path / "toy")
    repro(folder)
    (folder / "source.txt").write_text("abc\n")
    repro(folder)
    monkeypatch.chdir(folder)
    return folder


def test_the_doctor_finds_what_a_disk_has_damaged_and_dvc_would_restore(ran_twice: Path) -> None:
    lists = [path for path in CACHE.rglob("*") if path.is_file()]
    for path in lists[:2]:
        path.chmod(0o644)
        path.write_bytes(b"wrong")
    being_written = ran_twice / lists[2].with_name(".aBcD.tmp")
    being_written.write_bytes(b"half")

    assert {*drop_damaged()} == {ran_twice / path for path in lists[:2]}
    assert drop_damaged() == []
    assert [path for path in lists if path.exists()] == lists[2:]
    assert being_written.exists()


METRIC = """\
stages:
  one:
    cmd: cp source.txt one.txt && wc -c source.txt > metric.txt && mkdir curves && echo step > curves/a.tsv
    deps: [source.txt]
    outs: [one.txt]
    metrics: [metric.txt: {cache: false}]
    plots: [curves: {cache: false}]
"""


def pushed(folder: Path, targets: Sequence[str] = ()) -> Path:
    """Push the results of a project and its .dvc data, and lose them here; the folder of the remote's objects."""
    dvc(folder, "remote", "add", "-q", "-d", "store", str(folder.parent / "store"))
    push_results(targets)
    shutil.rmtree(".dvc/cache")
    return folder.parent / "store/files/md5"


def objects(store: Path, content: bytes) -> list[Path]:
    return [path for path in store.rglob("*") if path.is_file() and path.read_bytes() == content]


def pulled(stage: str) -> tuple[StageOutcome, str]:
    """How a stage ends with `--pull`, and its lines."""
    lines: list[str] = []
    outcome = asyncio.run(run_repro(stage, [stage], Path(), os.environ, lines.extend, options=[SINGLE], pull=True))
    return outcome, "\n".join(lines)


@pytest.mark.parametrize("targets", [[], ["one"]])
def test_what_was_pushed_is_restored_elsewhere_though_git_tracks_its_metrics_and_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, targets: list[str]
) -> None:
    folder = make_toy(tmp_path / "toy", METRIC)
    repro(folder)
    monkeypatch.chdir(folder)
    pushed(folder, targets)
    for name in ("one.txt", "metric.txt", "dvc.lock", "curves/a.tsv"):
        Path(name).unlink()

    fetch_run_cache()

    outcome, said = pulled("one")
    assert outcome.result == "restored", said
    assert Path("metric.txt").exists()
    assert Path("curves/a.tsv").read_text() == "step\n"


def test_a_plain_push_is_restored_where_git_has_brought_the_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_toy(tmp_path / "toy", METRIC)
    repro(folder)
    monkeypatch.chdir(folder)
    dvc(folder, "remote", "add", "-q", "-d", "store", str(tmp_path / "store"))
    dvc(folder, "push", "--run-cache")
    shutil.rmtree(".dvc/cache")
    Path("one.txt").unlink()

    fetch_run_cache()

    outcome, said = pulled("one")
    assert outcome.result == "restored", said
    assert Path("one.txt").exists()


FOLDER = """\
stages:
  one: {cmd: mkdir one && cp source.txt one/, deps: [source.txt], outs: [one]}
"""


@pytest.mark.parametrize("fault", ["lost", "damaged"])
@pytest.mark.parametrize("dvc_yaml", [ONE, FOLDER], ids=["file", "folder"])
def test_a_result_that_the_remote_has_lost_or_damaged_is_named_and_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, dvc_yaml: str
) -> None:
    folder = make_toy(tmp_path / "toy", dvc_yaml)
    repro(folder)
    monkeypatch.chdir(folder)
    (stored,) = objects(pushed(folder), Path("source.txt").read_bytes())
    stored.unlink()
    if fault == "damaged":
        stored.write_text("0123456780\n")
    made = next(path for path in (Path("one/source.txt"), Path("one.txt")) if path.exists())
    made.unlink()

    outcome, said = pulled("one")

    assert outcome.result == "ran"
    assert f"the DVC remote does not have {made} ({file_md5(made)}); computing one" in said
    assert made.read_text() == "0123456789\n"


def test_data_that_no_stage_makes_is_fetched_and_named_if_the_remote_has_lost_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make_toy(tmp_path / "toy", "stages: {}"))
    dvc(Path.cwd(), "add", "-q", "source.txt")
    (stored,) = objects(pushed(Path.cwd()), Path("source.txt").read_bytes())
    Path("source.txt").unlink()

    assert pulled("source.txt.dvc")[0].good
    assert Path("source.txt").read_text() == "0123456789\n"

    md5 = file_md5(stored)
    stored.unlink()
    Path("source.txt").unlink()
    shutil.rmtree(".dvc/cache")
    outcome, _ = pulled("source.txt.dvc")
    assert outcome.message == f"source.txt.dvc: the DVC remote does not have source.txt ({md5}): `dvc push` it there"


def test_a_remote_that_is_not_set_up_is_a_mistake_and_one_that_does_not_answer_may_answer_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make_toy(tmp_path / "toy"))
    dvc(Path.cwd(), "config", "core.remote", "stor")

    with pytest.raises(UserError, match=r"dvc pull: .*'stor'.*; correct the DVC remote") as mistake:
        fetch_run_cache()
    assert not isinstance(mistake.value, UnavailableError)
    with pytest.raises(UnavailableError, match="dvc pull: no route"), asking_remote("pull"):
        raise OSError("no route")


@pytest.mark.parametrize(
    "error", [ImportError("ssh is supported, but requires 'dvc-ssh'"), type("NoCredentialsError", (Exception,), {})()]
)
def test_a_remote_without_its_library_or_credentials_is_a_mistake(error: Exception) -> None:
    with pytest.raises(UserError) as mistake, asking_remote("pull"):
        raise error
    assert not isinstance(mistake.value, UnavailableError)


def test_a_remote_that_refuses_access_is_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_toy(tmp_path / "toy"))
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        dvc(Path.cwd(), "remote", "add", "-q", "-d", "refusing", f"http://127.0.0.1:{server.server_port}/store")
        dvc(Path.cwd(), "repro", "-q")

        with pytest.raises(
            UserError, match=r"dvc push: access denied \(401, .*\); set the DVC remote's credentials"
        ) as mistake:
            push_results()
        server.shutdown()
    assert not isinstance(mistake.value, UnavailableError)


def test_data_that_a_remote_refuses_is_not_said_to_be_missing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsspec takes 401 for a file that does not exist."""
    monkeypatch.chdir(make_toy(tmp_path / "toy", "stages: {}"))
    dvc(Path.cwd(), "add", "-q", "source.txt")
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        dvc(Path.cwd(), "remote", "add", "-q", "-d", "refusing", f"http://127.0.0.1:{server.server_port}/store")
        Path("source.txt").unlink()
        shutil.rmtree(".dvc/cache")

        with pytest.raises(UserError, match=r"dvc pull: access denied \(401, .*\); set the DVC remote's credentials"):
            fetch_result("source.txt.dvc")
        server.shutdown()


class Refusing(BaseHTTPRequestHandler):
    """Answers every request with 401."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(401)
        self.end_headers()

    do_GET = do_HEAD = do_POST = answer  # noqa: N815


def test_a_cache_in_which_nothing_can_be_stored_ends_a_run_before_its_first_stage(ran_twice: Path) -> None:
    dvc(ran_twice, "cache", "dir", "--local", "/proc/no-cache")
    (ran_twice / "source.txt").write_text("another\n")

    done = run_module(PARROTFLOW, ["run"], ran_twice)

    assert done.returncode == 2
    assert "DVC's cache is not writable" in done.stderr
    assert "nothing was started" in done.stderr
    assert "started" not in done.stdout
