"""The launch configuration says by how many processes a set is scored, and changes nothing of what comes out."""

import sys
from pathlib import Path

import pytest

from stages.evaluate.__main__ import main
from stages.evaluate.likelihood import processes
from stages.runtime.entry import EXIT_USER_ERROR, UserError
from tests.evaluate.likelihood.test_held_out import write_jsonl
from tests.small_project import ROOT, folder_bytes, function_text
from tests.trained_project import write_sections


def results(project: Path) -> dict[str, bytes]:
    return {
        name: content
        for name, content in folder_bytes(project).items()
        if name.startswith(("reports/evaluate", "reports/loss_by_position", "data/document_losses"))
    }


def test_two_processes_of_the_launcher_give_the_same_bytes_as_one(
    project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(project / "more.jsonl", {"text": function_text(50)})
    write_sections(project, evaluate__sets={"more": "more.jsonl"})
    main()
    alone = results(project)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PARROTFLOW_LAUNCH", "cpu_2")

    main()

    assert "scoring with 2 processes by launch/cpu_2.yaml" in capfd.readouterr().out
    assert len(alone) == 5
    assert results(project) == alone


def launch_instead(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A launcher whose worker is a few lines of Python."""
    monkeypatch.setenv("PARROTFLOW_LAUNCH", "cpu_2")
    monkeypatch.setattr(processes, "command", lambda *_: [sys.executable, "-c", script])


def test_a_worker_that_dies_ends_the_stage_with_one_message(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch_instead(monkeypatch, "raise SystemExit(9)")

    with pytest.raises(UserError, match="evaluate: a worker died with exit code 9; its messages are above"):
        main()


def test_a_worker_that_has_said_what_is_wrong_ends_the_stage_with_its_exit_code(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch_instead(monkeypatch, "from stages.runtime.launch.supervision import leave; leave(2)")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == EXIT_USER_ERROR


def test_more_processes_than_gpus_are_refused_before_anything_is_scored(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARROTFLOW_LAUNCH", "ddp")
    monkeypatch.setattr("stages.runtime.launch.config.device_count", lambda: 0)

    with pytest.raises(UserError, match=r"launch/ddp\.yaml starts 8 processes on this machine, each on a GPU"):
        main()
