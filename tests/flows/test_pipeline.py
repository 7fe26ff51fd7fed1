"""Runs of pipelines of shell commands, from the command line."""

import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests.flows.plan.test_graph import MATRIX
from tests.flows.toy import make_toy, repro
from tests.small_project import PARROTFLOW, ROOT, SECTIONS, run_module, write_params

SIDE_BY_SIDE = """\
stages:
  left:
    cmd: date +%s.%N > left.txt && touch left && sh meet.sh right && date +%s.%N >> left.txt
    outs: [left.txt]
  right:
    cmd: date +%s.%N > right.txt && touch right && sh meet.sh left && date +%s.%N >> right.txt
    outs: [right.txt]
  join:
    cmd: cat left.txt right.txt > join.txt
    deps: [left.txt, right.txt]
    outs: [join.txt]
"""

MEET = "for try in $(seq 1200); do [ -e $1 ] && exit; sleep 0.1; done; exit 1"
"""Waits until the other stage has begun: a stage that is started only after this one has ended lets it fail."""

FAILING = """\
stages:
  good: {cmd: echo fine > good.txt, outs: [good.txt]}
  bad: {cmd: sh bad.sh, deps: [good.txt], outs: [bad.txt]}
  after: {cmd: cat bad.txt > after.txt, deps: [bad.txt], outs: [after.txt]}
"""

SLOW = "stages:\n  slow: {cmd: sleep 600 && touch slow.txt, outs: [slow.txt]}\n"


def environment(home: Path, *, server: bool = True) -> dict[str, str]:
    """Without `server` no server is configured."""
    kept = {"PREFECT_API_URL"} if server else set()
    values = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_") or name in kept}
    return values | {"HOME": str(home), "GIT_CONFIG_GLOBAL": "/dev/null"}


COMMAND = [sys.executable, "-m", "flows.cli", "run"]


def toy(folder: Path, dvc_yaml: str) -> Path:
    made = make_toy(folder, dvc_yaml)
    (made / "params.yaml").write_text("{}\n")
    return made


def run(folder: Path, *targets: str, server: bool = True) -> "subprocess.CompletedProcess[str]":
    (folder.parent / "home").mkdir(exist_ok=True)
    return run_module(PARROTFLOW, ["run", *targets], folder, environment(folder.parent / "home", server=server))


def processes_in(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink() == folder:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_independent_stages_run_side_by_side_and_a_second_run_runs_none(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", SIDE_BY_SIDE)
    (folder / "meet.sh").write_text(MEET)

    first = run(folder)

    assert first.returncode == 0, first.stdout + first.stderr
    left, right = ((folder / name).read_text().split() for name in ("left.txt", "right.txt"))
    assert max(left[0], right[0]) < min(left[1], right[1])
    second = run(folder)
    assert second.returncode == 0
    assert "Everything is up to date." in second.stdout
    assert "started" not in second.stdout


def test_a_failure_is_told_once_in_the_stages_words_and_stops_what_hangs_on_it(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", FAILING)
    (folder / "bad.sh").write_text("echo 'error: corpus.txt: not found; name another' >&2\nexit 2\n")

    result = run(folder)

    assert result.returncode == 1
    assert "Traceback" not in result.stdout + result.stderr
    summary = result.stdout.split("bad failed", 1)[1]
    assert summary.count("corpus.txt: not found; name another") == 1
    assert "after  not started" in [line.rstrip() for line in result.stdout.splitlines()], "no reason to start it"
    assert (folder / "good.txt").read_text() == "fine\n"
    assert not (folder / "after.txt").exists()
    (folder / "bad.sh").write_text("echo mended > bad.txt\n")
    assert run(folder).returncode == 0
    assert (folder / "after.txt").read_text() == "mended\n"


def test_a_wrong_parameter_is_refused_before_anything_starts(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", SLOW)
    # In a project with stages that have models, params.yaml is checked.
    (folder / "stages").symlink_to(ROOT / "stages")
    write_params(folder, *SECTIONS)
    with (folder / "params.yaml").open("a") as file:
        file.write("nonesuch: {}\n")

    result = run(folder)

    assert result.returncode == 2
    assert result.stderr.strip().splitlines() == [
        "error: params.yaml: nonesuch: no stage of dvc.yaml has such a section"
    ]
    assert not (folder / ".parrotflow/prefect").exists()


def test_a_matrix_runs_as_under_dvc(tmp_path: Path) -> None:
    folder, other = (toy(tmp_path / name, MATRIX) for name in ("prefect", "dvc"))

    result = run(folder)
    repro(other)

    assert result.returncode == 0, result.stdout + result.stderr
    assert (folder / "a.txt").read_text() == "a1\na2\n"
    assert yaml.safe_load((folder / "dvc.lock").read_text()) == yaml.safe_load((other / "dvc.lock").read_text())
    assert "Everything is up to date." in run(folder).stdout
