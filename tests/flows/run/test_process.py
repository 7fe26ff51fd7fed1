"""A stage as a process, run by DVC: its outcome, its lines, its end."""

import contextlib
import resource
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.run.dvc_server import DvcServer
from flows.run.outcome import StageOutcome
from flows.run.process import END, LineSplitter, StageRequest, StageRunner, group_lives, read_outcome
from stages.runtime.entry import EXIT_REFUSED, UserError
from tests.flows.toy import dvc, make_toy, repro
from tests.forked import PARROTFLOW, run_forked

STAGE = "stages:\n  one: {{cmd: {cmd}, outs: [out.txt]}}\n"


@pytest.fixture
def runner() -> Iterator[StageRunner]:
    with contextlib.closing(DvcServer()) as server:
        yield StageRunner(server)


def run(runner: StageRunner, folder: Path, stage: str) -> tuple[StageOutcome, list[str]]:
    lines: list[str] = []
    return runner.run(StageRequest(stage), lines.extend), lines


def toy(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = make_toy(folder, STAGE.format(cmd="sh script.sh"))
    (made / "script.sh").write_text(script)
    monkeypatch.chdir(made)
    return made


def test_a_stage_runs_once_is_then_unchanged_and_restored_where_its_result_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_toy(tmp_path / "toy")
    monkeypatch.chdir(folder)
    with contextlib.closing(DvcServer()) as server:
        runner = StageRunner(server)

        assert run(runner, folder, "first")[0].result == "ran"
        assert run(runner, folder, "first")[0].result == "unchanged"
        (folder / "first.txt").unlink()
        (folder / "dvc.lock").unlink()
        assert run(runner, folder, "first")[0].result == "restored"


def test_an_edited_output_of_a_frozen_stage_and_edited_data_are_recorded_and_not_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = "cmd: cp source.txt out.txt, deps: [source.txt], outs: [out.txt]"
    folder = make_toy(tmp_path / "toy", f"stages:\n  one: {{{stage}}}\n")
    dvc(folder, "add", "-q", "source.txt")
    repro(folder)
    (folder / "dvc.yaml").write_text(f"stages:\n  one: {{frozen: true, {stage}}}\n")
    (folder / "out.txt").write_text("edited\n")
    (folder / "source.txt").write_text("edited\n")

    done = run_forked(PARROTFLOW, ["run", "one", "source.txt.dvc"], folder)

    rows = [line.split()[:2] for line in done.stdout.splitlines()]
    assert ["one", "recorded"] in rows, done.stdout + done.stderr
    assert ["source.txt.dvc", "recorded"] in rows
    assert (folder / "out.txt").read_text() == "edited\n"


def test_a_server_that_was_killed_is_told_in_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_toy(tmp_path / "toy"))
    with contextlib.closing(DvcServer()) as server:
        server._process.kill()
        server._process.wait()

        with pytest.raises(UserError, match="was killed: run the same command again"):
            run(StageRunner(server), tmp_path / "toy", "first")


def test_a_file_may_be_a_dependency_as_a_whole_and_by_a_parameter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = "deps: [params.yaml], params: [left.rate]"
    folder = make_toy(tmp_path / "toy", f"stages:\n  one: {{cmd: cp params.yaml out.txt, {both}, outs: [out.txt]}}\n")
    monkeypatch.chdir(folder)

    with contextlib.closing(DvcServer()) as server:
        outcome, _ = run(StageRunner(server), folder, "one")

    assert outcome.result == "ran", outcome.message


def test_an_edit_that_dvc_would_record_although_the_command_has_not_seen_it_fails_the_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = "stages:\n  one: {cmd: cp in.txt out.txt && echo edited > in.txt, deps: [in.txt], outs: [out.txt]}\n"
    folder = make_toy(tmp_path / "toy", one)
    (folder / "in.txt").write_text("first\n")
    monkeypatch.chdir(folder)
    with contextlib.closing(DvcServer()) as server:
        outcome, _ = run(StageRunner(server), folder, "one")

        assert outcome.result == "failed"
        assert "inputs changed while it ran: in.txt" in outcome.message
        assert not (folder / "dvc.lock").exists()
        (folder / "dvc.yaml").write_text(one.replace(" && echo edited > in.txt", ""))
        assert run(StageRunner(server), folder, "one")[0].result == "ran"
        assert (folder / "out.txt").read_text() == "edited\n"


def in_folder(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> tuple[StageOutcome, list[str]]:
    made = toy(folder, script, monkeypatch)
    with contextlib.closing(DvcServer()) as server:
        return run(StageRunner(server), made, "one")


def test_a_failure_carries_the_stages_own_error_and_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, lines = in_folder(tmp_path / "toy", "echo 'error: corpus: not found' >&2\nexit 7\n", monkeypatch)

    assert (outcome.result, outcome.message, outcome.exit_code) == ("failed", "error: corpus: not found", 7)
    assert lines == ["error: corpus: not found"]


def test_an_error_of_several_lines_keeps_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "printf 'error: the Hub refused:\\nno such repository\\n'; exit 2"

    outcome, _ = in_folder(tmp_path / "toy", script, monkeypatch)

    assert outcome.message == "error: the Hub refused:\nno such repository"


def test_the_exit_code_is_dvcs_and_not_a_number_that_the_stage_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "echo 'worker 3 exited with 69'; exit 4"

    outcome, lines = in_folder(tmp_path / "toy", script, monkeypatch)

    assert outcome.exit_code == 4
    assert not outcome.transient
    assert lines == ["worker 3 exited with 69"]


def test_lines_of_a_stage_that_look_like_dvcs_are_the_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = ["Running stage 'nine':", "Verifying the checkpoint", "To track progress, look here", "ERROR: not one"]
    script = "".join(f'echo "{line}"\n' for line in said) + "echo 1 > out.txt\n"

    outcome, lines = in_folder(tmp_path / "toy", script, monkeypatch)

    assert outcome.result == "ran"
    assert lines == said


def test_a_background_process_of_a_stage_does_not_keep_the_run_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome, lines = in_folder(tmp_path / "toy", "sleep 1000 &\necho $!\ntouch out.txt\n", monkeypatch)

    assert outcome.result == "ran"
    subprocess.run(["kill", lines[0]], check=True)  # fails unless it still runs


def test_a_line_that_renews_itself_counts_with_its_last_state() -> None:
    lines: list[str] = []
    split = LineSplitter(lines.extend)
    for chunk in (b"10 %\r50", b" %\r100 %", b"\nhalf", b""):
        split.feed(chunk)

    assert lines == ["100 %", "half"]


def test_a_progress_bar_is_shown_before_its_line_ends_and_only_its_newest_state_is_kept() -> None:
    lines: list[str] = []
    split = LineSplitter(lines.extend, every_seconds=0)
    for number in range(3):
        split.feed(b"%d of 3\r" % number)
        assert len(split.rest) <= len(b"0 of 3\r")
    split.feed(b"3 of 3\n")

    assert lines[-2:] == ["2 of 3", "3 of 3"]


def test_the_lines_of_one_chunk_come_together() -> None:
    calls: list[list[str]] = []
    split = LineSplitter(calls.append)
    for chunk in (b"one\ntwo\nthr", b"ee", b"\n", b""):
        split.feed(chunk)

    assert calls == [["one", "two"], ["three"]]


def test_stop_ends_everything_that_a_stage_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy(tmp_path / "toy", "sleep 600 &\necho $!\nsleep 600\n", monkeypatch)
    outcomes: list[StageOutcome] = []
    lines: list[str] = []
    with contextlib.closing(DvcServer()) as server:
        runner = StageRunner(server)
        thread = threading.Thread(target=lambda: outcomes.append(runner.run(StageRequest("one"), lines.extend)))
        thread.start()
        while not lines:
            time.sleep(0.02)

        runner.stop()
        thread.join(timeout=120)

    assert outcomes[0].result == "stopped"
    assert not group_lives(int(lines[0]))
    assert subprocess.run(["ps", "-p", lines[0]], check=False, capture_output=True).returncode == 1


def test_a_stage_that_is_given_up_is_stopped_for_that_reason_and_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy(tmp_path / "toy", "echo started\nsleep 600\n", monkeypatch)
    lines: list[str] = []

    with contextlib.closing(DvcServer()) as server:
        outcome = StageRunner(server).run(StageRequest("one"), lines.extend, give_up=lambda: "worse" if lines else "")

    assert (outcome.result, outcome.message, outcome.exit_code) == ("stopped", "worse", 0)


def test_nothing_starts_after_stop(runner: StageRunner) -> None:
    runner.stop()

    assert runner.run(StageRequest("one"), print).result == "stopped"


def test_without_an_error_of_its_own_the_last_line_counts() -> None:
    messages = [
        "Running stage 'x':",
        "ERROR: failed to reproduce 'x': failed to run: sh x, exited with 1",
        f"{END}255 0.5",
    ]

    assert read_outcome("x", messages, ["a", "b"], 0.0).message == "b"


def test_dvc_that_was_killed_is_no_success() -> None:
    assert read_outcome("x", ["Running stage 'x':", "> sh x"], [], 0.0).result == "failed"


@pytest.mark.parametrize(
    ("exit_code", "transient"), [(69, True), (75, True), (143, True), (-15, True), (2, False), (28, False), (65, False)]
)
def test_outages_and_stopped_stages_are_transient_failures(exit_code: int, transient: bool) -> None:
    assert StageOutcome("x", "failed", exit_code=exit_code).transient == transient


def test_a_stage_that_refuses_its_input_is_refused_and_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"echo 'error: worse than what is published' >&2; exit {EXIT_REFUSED}"

    outcome, _ = in_folder(tmp_path / "toy", script, monkeypatch)

    assert (outcome.result, outcome.exit_code) == ("refused", EXIT_REFUSED)
    assert outcome.message == "error: worse than what is published"
    assert not outcome.transient


def test_a_limit_of_the_shell_on_memory_is_named_where_a_stage_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (64 << 40, before[1]))
    try:
        toy(tmp_path / "toy", "echo failed to map segment; exit 1", monkeypatch)
        with contextlib.closing(DvcServer()) as server:
            outcome, _ = run(StageRunner(server), tmp_path / "toy", "one")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)

    assert outcome.message == "failed to map segment (this shell limits memory to 70368.7 GB: `ulimit -v`)"
