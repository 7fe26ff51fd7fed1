"""Silent corruption of DVC's cache is not restored as a result."""

import contextlib
import shutil
from pathlib import Path

import pytest

from flows.dvc_repo.cache import drop_damaged, files_of_templates, low_space, push_results, reach
from flows.dvc_repo.internals import open_repo
from flows.plan.graph import make_plan
from flows.run.dvc_server import DvcServer
from flows.run.process import StageRequest, StageRunner
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


def damage(text: str) -> Path:
    """Damage the cache's file with that content, unnoticed by DVC."""
    entry = next(path for path in CACHE.rglob("*") if path.is_file() and path.read_text() == text)
    entry.chmod(0o644)
    entry.write_text("wrong")
    entry.chmod(0o444)
    return entry


def test_what_the_run_cache_would_restore_is_checked_when_the_stages_turn_comes(toy: Path) -> None:
    entry = damage("012")  # left.txt of the first run
    (toy / "source.txt").write_text("0123456789\n")
    assert drop_damaged("left") == []  # its input is not there yet
    repro(toy, "--single-item", "first")

    assert drop_damaged("left") == ["left.txt"]
    assert not entry.exists()
    repro(toy)
    assert (toy / "left.txt").read_text() == "012"


def test_a_missing_result_is_checked_before_it_is_restored(toy: Path) -> None:
    damage((toy / "left.txt").read_text())
    assert drop_damaged("left") == []  # it is in the workspace: nothing is read
    (toy / "left.txt").unlink()

    assert drop_damaged("left") == ["left.txt"]


def test_without_dvc_lock_the_run_cache_replaces_whole_results_too_so_it_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_toy(
        tmp_path / "toy",
        "stages:\n  one: {cmd: cp source.txt out.json, deps: [source.txt], metrics: [out.json: {cache: false}]}\n",
    )
    (folder / "source.txt").write_text("[1]")
    repro(folder)
    monkeypatch.chdir(folder)
    damage("[1]")
    (folder / "dvc.lock").unlink()

    assert drop_damaged("one") == ["out.json"]
    repro(folder)
    assert (folder / "out.json").read_text() == "[1]"


def test_every_file_of_a_folder_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "mkdir -p out && cp source.txt out/a && echo b > out/b"
    folder = make_toy(tmp_path / "toy", f"stages:\n  one: {{cmd: {command}, deps: [source.txt], outs: [out]}}\n")
    repro(folder)
    monkeypatch.chdir(folder)
    damage("b\n")
    (folder / "out/a").unlink()

    assert drop_damaged("one") == ["out"]
    repro(folder)
    assert (folder / "out/b").read_text() == "b\n"


@pytest.mark.parametrize("content", [b"\xff", b"[]", b'[{"md5": 1}]', b""])
def test_a_damaged_list_of_a_folders_files_ends_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    command = "mkdir -p out && cp source.txt out/a"
    folder = make_toy(tmp_path / "toy", f"stages:\n  one: {{cmd: {command}, deps: [source.txt], outs: [out]}}\n")
    repro(folder)
    monkeypatch.chdir(folder)
    listed = next(CACHE.rglob("*.dir"))
    listed.chmod(0o644)
    listed.write_bytes(content)
    shutil.rmtree("out")

    assert [stage.state for stage in make_plan()] == ["run"]
    assert not listed.exists()
    repro(folder)
    assert (folder / "out/a").read_text() == (folder / "source.txt").read_text()


def test_what_a_remote_sends_damaged_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_toy(tmp_path / "toy")
    repro(folder)
    dvc(folder, "remote", "add", "-q", "-d", "store", str(tmp_path / "store"))
    dvc(folder, "push", "-q")
    monkeypatch.chdir(folder)
    sent = next(path for path in (tmp_path / "store").rglob("*") if path.is_file() and path.read_text() == "012")
    sent.chmod(0o644)
    sent.write_text("wrong")
    shutil.rmtree(".dvc/cache")
    (folder / "left.txt").unlink()

    with contextlib.closing(DvcServer()) as server:
        outcome = StageRunner(server).run(StageRequest("left", pull=True, check_cache=True), print)

    assert outcome.result == "ran", outcome.message
    assert (folder / "left.txt").read_text() == "012"


METRIC = """\
stages:
  one:
    cmd: cp source.txt one.txt && cp source.txt metric.txt
    deps: [source.txt]
    outs: [one.txt]
    metrics: [metric.txt: {cache: false}]
"""


def test_an_output_that_is_there_is_checked_too_since_dvc_removes_it_before_it_restores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_toy(tmp_path / "toy", METRIC.replace("cp source.txt metric", "head -c 5 source.txt > metric"))
    repro(folder)
    monkeypatch.chdir(folder)
    damage("01234")
    (folder / "one.txt").unlink()

    assert drop_damaged("one") == ["metric.txt"]


@pytest.mark.parametrize("kept_bytes", [0, 30, -1])
def test_a_damaged_entry_of_the_run_cache_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_bytes: int
) -> None:
    folder = make_toy(tmp_path / "toy", METRIC)
    repro(folder)
    monkeypatch.chdir(folder)
    entry = next(path for path in Path(".dvc/cache/runs").rglob("*") if path.is_file())
    text = entry.read_text()
    # The third one is whole YAML, with another hash of an output.
    entry.write_text(text[:kept_bytes] if kept_bytes >= 0 else text.replace("md5: ", "md5: 0", 1))
    for name in ("dvc.lock", "one.txt", "metric.txt"):
        (folder / name).unlink()

    assert [stage.state for stage in make_plan()] == ["run"]
    repro(folder)
    assert (folder / "metric.txt").exists()


def test_a_pull_is_not_over_while_an_output_is_missing_that_no_cache_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_toy(tmp_path / "toy", METRIC)
    repro(folder)
    for words in (["remote", "add", "-q", "-d", "store", str(tmp_path / "store")], ["push", "-q"]):
        dvc(folder, *words)
    shutil.rmtree(folder / ".dvc/cache")
    for name in ("one.txt", "metric.txt"):
        (folder / name).unlink()
    monkeypatch.chdir(folder)

    with contextlib.closing(DvcServer()) as server:
        outcome = StageRunner(server).run(StageRequest("one", pull=True, check_cache=True), print)

    assert outcome.result in ("ran", "restored"), outcome.message
    assert (folder / "metric.txt").exists()


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
    with contextlib.closing(DvcServer()) as server:
        outcome = StageRunner(server).run(StageRequest("one", pull=True, check_cache=True), print)
    assert outcome.result == "restored", outcome.message
    assert Path("metric.txt").exists()


def test_a_damaged_file_of_the_cache_does_not_replace_a_right_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_toy(tmp_path / "toy")
    repro(folder)
    monkeypatch.chdir(folder)
    damage("012")

    with contextlib.closing(DvcServer()) as server:
        outcome = StageRunner(server).run(StageRequest("left", force=True), print)

    assert outcome.result == "ran", outcome.message
    assert (folder / "left.txt").read_text() == "012"


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


DVC_YAML = """\
vars: [machine.yaml, {own: 1}]
stages:
  one:
    cmd: echo ${ left.rate } ${host.name} ${own} > one.txt
    outs: [one.txt]
    meta: {note: "${left.note}"}
  two:
    cmd: python two.py ${many}
    deps: [one.txt]
    outs: [two.txt]
  three:
    foreach: ${sizes}
    do:
      vars: ["other.yaml:other"]
      cmd: echo ${item} ${other.unit} > ${left.name}-${item}.txt
      outs: ["${left.name}-${item}.txt"]
"""


def test_keys_of_commands_and_paths_and_unpacked_sections_are_read_by_their_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_toy(tmp_path / "toy", DVC_YAML)
    values = "left: {rate: 1, name: a, note: x}\nmany: {a: 1, b: 2}\nsizes: [1, 2]\n"
    for name, text in (("params", values), ("machine", "host: {name: h}\n"), ("other", "other: {unit: s}\n")):
        (folder / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(folder)

    assert reach(["one"]).params == {"left.rate", "host.name", "own"}
    assert reach(["two"]).params == {"left.rate", "host.name", "own", "many"}
    assert reach(["three@2"]).params == {"sizes", "item", "other.unit", "left.name"}
    with open_repo() as repo:
        assert files_of_templates(repo.stage.collect("one")) == {folder / "machine.yaml"}
        assert files_of_templates(repo.stage.collect("three@2")) == {folder / "machine.yaml", folder / "other.yaml"}
