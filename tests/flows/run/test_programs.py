"""Programs of a stage that are not its command: a sidecar, a preflight before the run starts, and a forecast."""

import subprocess
import time
from pathlib import Path

import psutil
import pytest

from flows.plan.graph import Plan, PlannedStage, StageState
from flows.plan.settings import Policy, Program
from flows.run.programs import forecasts, preflight, redactor, running_sidecar, unhidden
from stages.runtime.entry import EXIT_UNAVAILABLE, UserError
from tests.flows.test_pipeline import processes_in, run, toy

STAGES = """\
stages:
  train: {cmd: "env > train.txt && sleep 1", outs: [train.txt], meta: {flow: {sidecar: %s}}}
  publish: {cmd: cp train.txt published.txt, deps: [train.txt], outs: [published.txt], meta: {flow: {preflight: %s}}}
"""


def pipeline(folder: Path, sidecar: str = "null", preflight: str = "null") -> Path:
    made = toy(folder, STAGES % (sidecar, preflight))
    (made / "params.yaml").write_text("publish: {to: null, push: true}\n")
    return made


def test_a_sidecar_runs_while_its_stage_runs_with_secrets_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "a-secret-of-mine")
    folder = pipeline(tmp_path / "toy", "{command: sh sidecar.sh, when: '${publish.push}', secrets: [HF_TOKEN]}")
    (folder / "sidecar.sh").write_text("env > sidecar.txt\necho seen $HF_TOKEN\nsleep 100\n")

    result = run(folder)

    assert result.returncode == 0, result.stdout
    assert "seen [HF_TOKEN]" in result.stdout
    assert "HF_TOKEN=a-secret-of-mine" in (folder / "sidecar.txt").read_text()
    assert "HF_TOKEN" not in (folder / "train.txt").read_text()
    assert processes_in(folder) == []


def test_a_sidecar_that_fails_is_a_warning(tmp_path: Path) -> None:
    folder = pipeline(tmp_path / "toy", "{command: sh -c 'exit 3'}")

    result = run(folder)

    assert result.returncode == 0
    assert "warning: `sh -c 'exit 3'` exited with 3; the stage is not affected" in result.stdout


def test_a_program_that_does_not_start_is_a_warning() -> None:
    lines: list[str] = []

    with running_sidecar(Program(command="no-such-program"), set(), lines.extend):
        pass

    assert lines == [
        "warning: `no-such-program` does not start: [Errno 2] No such file or directory: 'no-such-program'"
    ]


def test_a_program_that_ignores_the_request_to_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.run.programs.GRACE_SECONDS", 0.2)
    lines: list[str] = []

    with running_sidecar(Program(command="sh -c 'trap \"\" TERM; echo $$; sleep 100'"), set(), lines.extend):
        while not lines:
            time.sleep(0.01)

    assert not psutil.pid_exists(int(lines[0].rpartition(" ")[2]))


@pytest.mark.parametrize("when", [None, False, ""])
def test_a_program_whose_condition_does_not_hold_is_not_started(when: object) -> None:
    with running_sidecar(Program(command="no-such-program", when=when), set(), pytest.fail):
        pass


def test_a_preflight_that_fails_ends_the_run_before_anything_starts(tmp_path: Path) -> None:
    folder = pipeline(tmp_path / "toy", preflight="{command: sh preflight.sh}")
    (folder / "preflight.sh").write_text("echo error: publish.to: no token\nexit 2\n")

    result = run(folder)

    assert result.returncode == 2
    assert "error: publish.to: no token; nothing was started" in result.stderr
    assert not (folder / "train.txt").exists()


def test_a_preflight_without_a_network_is_a_warning(tmp_path: Path) -> None:
    folder = pipeline(tmp_path / "toy", preflight="{command: sh preflight.sh}")
    (folder / "preflight.sh").write_text(f"echo error: no answer\nexit {EXIT_UNAVAILABLE}\n")

    result = run(folder)

    assert result.returncode == 0, result.stdout
    assert "warning: no answer; publish may fail when its turn comes" in result.stdout
    assert (folder / "published.txt").exists()


def test_a_preflight_does_not_run_without_its_condition_or_where_nothing_runs_before_its_stage(tmp_path: Path) -> None:
    folder = pipeline(tmp_path / "toy", preflight="{command: no-such-program, when: '${publish.to}'}")
    assert run(folder).returncode == 0

    (folder / "dvc.yaml").write_text((folder / "dvc.yaml").read_text().replace("${publish.to}", "${publish.push}"))
    (folder / "published.txt").unlink()
    assert run(folder).returncode == 0

    (folder / "train.txt").unlink()
    subprocess.run(["sed", "-i", "s/sleep 1/sleep 0/", "dvc.yaml"], cwd=folder, check=True)
    assert "dvc.yaml: publish.meta.flow.preflight: `no-such-program`" in run(folder).stderr


def test_a_preflight_is_not_asked_for_a_stage_that_is_only_restored() -> None:
    policy = Policy(preflight=Program(command="sh -c 'echo error: no room; exit 2'"))
    before = PlannedStage("tokenize", "run", (), (), Policy())
    restored, run = (PlannedStage("train", state, (), ("tokenize",), policy) for state in ("restore", "run"))

    assert preflight(Plan((before, restored)), set(), str) == []
    with pytest.raises(UserError, match="no room; nothing was started"):
        preflight(Plan((before, run)), set(), str)


def test_the_secrets_of_a_stage_are_those_of_its_programs_too() -> None:
    policy = Policy(secrets=("A",), sidecar=Program(command="x", secrets=("B",)), preflight=Program(command="y"))

    assert policy.all_secrets == {"A", "B"}


def test_a_secret_that_another_begins_with_or_that_has_several_lines_is_hidden_whole() -> None:
    key = "-----BEGIN KEY-----\nAAAAbbbbCCCC\r\nDDDDeeeeFFFF\nab==\n"
    environment = {"USER_KEY": "abcdefgh", "ADMIN_KEY": "abcdefgh-and-more", "SIGNING": key}
    for names in (["USER_KEY", "ADMIN_KEY", "SIGNING"], ["SIGNING", "ADMIN_KEY", "USER_KEY"]):
        redact = redactor(names, environment)

        assert redact("is abcdefgh-and-more, abcdefgh") == "is [ADMIN_KEY], [USER_KEY]"
        assert [redact(line) for line in key.splitlines()][1:3] == ["[SIGNING]", "[SIGNING]"]


def test_a_secret_of_which_nothing_is_hidden_is_a_warning() -> None:
    environment = {"SHORT": "abc", "LINES": "abc\ndef\nghi\njkl", "LONG": "abcdefgh\nabc", "EMPTY": "\n"}

    assert [line.split()[1] for line in unhidden(environment, environment)] == ["LINES", "SHORT"]


def planned(state: StageState, command: str, **program: object) -> PlannedStage:
    """A stage with a forecast."""
    policy = Policy.model_validate({"forecast": {"command": command, **program}})
    return PlannedStage("train", state, (), (), policy)


@pytest.mark.parametrize(("state", "is_asked"), [("run", True), ("maybe", True), ("restore", False), ("clean", False)])
def test_a_forecast_is_made_where_its_stage_may_run(state: StageState, is_asked: bool) -> None:
    lines = list(forecasts(Plan((planned(state, "echo an hour"),)), set(), str))

    assert lines == (["train:", "  an hour"] if is_asked else [])


def test_a_forecast_sees_no_secrets_of_others_and_is_not_made_without_its_condition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "a-secret-of-mine")
    stages = (planned("run", "sh -c 'echo token \"$HF_TOKEN\"'"), planned("run", "echo never", when=None))

    assert list(forecasts(Plan(stages), {"HF_TOKEN"}, str)) == ["train:", "  token "]


def test_a_forecast_that_fails_says_why_and_is_a_warning() -> None:
    failing = list(forecasts(Plan((planned("run", "sh -c 'echo error: no torch; exit 1'"),)), set(), str))
    missing = list(forecasts(Plan((planned("run", "no-such-program"),)), set(), str))

    assert failing[1:] == ["  error: no torch", "warning: `sh -c 'echo error: no torch; exit 1'` exited with 1"]
    assert missing[0].startswith("warning: `no-such-program` does not start")


def test_a_stage_that_would_be_refused_is_refused_after_all_forecasts() -> None:
    stages = (planned("run", "sh -c 'echo 3 hours; echo error: too large; exit 2'"), planned("run", "echo an hour"))
    said = forecasts(Plan(stages), set(), str)

    assert [next(said) for _ in range(4)] == ["train:", "  3 hours", "train:", "  an hour"]
    with pytest.raises(UserError, match=r"^too large$"):
        next(said)


def test_a_program_is_told_which_stages_are_not_up_to_date() -> None:
    stages = (planned("run", "sh -c 'echo $PARROTFLOW_STAGES_TO_DO'"), PlannedStage("tokenize", "maybe", (), ()))

    assert list(forecasts(Plan(stages), set(), str)) == ["train:", "  train tokenize"]
