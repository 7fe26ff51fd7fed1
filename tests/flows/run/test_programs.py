"""The checks of stages before anything starts, and what is hidden of secrets."""

import subprocess
from pathlib import Path

import psutil
import pytest

from flows.plan.graph import Plan, PlannedStage, StageState
from flows.plan.settings import Policy
from flows.run.programs import checks, group_lives, redactor
from stages.runtime.errors import EXIT_UNAVAILABLE, UserError
from tests.flows.test_pipeline import run, toy
from tests.waiting import wait_until

STAGES = """\
stages:
  train: {cmd: env > train.txt, outs: [train.txt]}
  publish: {cmd: cp train.txt published.txt, deps: [train.txt], outs: [published.txt], meta: {flow: {check: %s}}}
"""


def pipeline(folder: Path, check: str) -> Path:
    made = toy(folder, STAGES % check)
    (made / "params.yaml").write_text("publish: {to: null}\n")
    return made


def test_a_check_that_fails_ends_the_run_before_anything_starts(tmp_path: Path) -> None:
    folder = pipeline(tmp_path / "toy", "{command: sh check.sh}")
    (folder / "check.sh").write_text("echo error: publish.to: no token\nexit 2\n")

    result = run(folder)

    assert result.returncode == 2
    assert "error: publish.to: no token" in result.stderr
    assert not (folder / "train.txt").exists()


def test_a_check_that_fails_leaves_the_outputs_of_a_stage_that_is_the_first_to_run(tmp_path: Path) -> None:
    stage = "{cmd: cp in.txt out.txt, deps: [in.txt], outs: [out.txt], meta: {flow: {check: {command: test ! -s no}}}}"
    folder = toy(tmp_path / "toy", f"stages: {{train: {stage}}}\n")
    (folder / "in.txt").write_text("a\n")
    assert run(folder).returncode == 0
    (folder / "in.txt").write_text("b\n")
    (folder / "no").write_text("no\n")

    assert run(folder).returncode == 2
    assert (folder / "out.txt").read_text() == "a\n"


def test_a_secret_that_another_begins_with_or_that_has_several_lines_is_hidden_whole() -> None:
    key = "-----BEGIN KEY-----\nAAAAbbbbCCCC\r\nDDDDeeeeFFFF\nab==\n"
    secrets = {"USER_TOKEN": "abcdefgh", "ADMIN_TOKEN": "abcdefgh-and-more", "MY_SECRET": key, "SHORT_TOKEN": "abc"}
    for names in (secrets, reversed(secrets)):
        redact = redactor({name: secrets[name] for name in names} | {"HOME": "/home/somebody"})

        assert redact("is abcdefgh-and-more, abcdefgh") == "is [ADMIN_TOKEN], [USER_TOKEN]"
        assert [redact(line) for line in key.splitlines()][1:3] == ["[MY_SECRET]", "[MY_SECRET]"]
        assert redact("abc in /home/somebody") == "abc in /home/somebody"
        assert redact("with hf_" + "Ab1" * 6) == "with [token]"


def planned(command: str, state: StageState = "run", upstream: tuple[str, ...] = (), **program: object) -> PlannedStage:
    """A stage with a check."""
    policy = Policy.model_validate({"check": {"command": command, **program}})
    return PlannedStage("train", state, (), upstream, policy)


def test_the_address_of_prefects_database_is_a_secret() -> None:
    address = "postgresql+asyncpg://me:pass@host/prefect"

    assert redactor({"PREFECT_API_DATABASE_CONNECTION_URL": address})(f"at {address}") == (
        "at [PREFECT_API_DATABASE_CONNECTION_URL]"
    )


def test_a_zombie_is_no_living_member_of_its_group() -> None:
    """In a container whose first process reaps none, whoever waits for its end waits for ever."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    assert group_lives(process.pid)

    process.kill()
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)

    assert not group_lives(process.pid)
    process.wait()


BEFORE = PlannedStage("tokenize", "run", (), (), Policy())


@pytest.mark.parametrize(
    ("stage", "by_why", "by_run"),
    [
        (planned("echo an hour"), ["train:", "  an hour"], ["train:", "  an hour"]),
        (planned("echo an hour", "maybe", ("tokenize",)), ["train:", "  an hour"], ["train:", "  an hour"]),
        (planned("echo an hour", "restore", ("tokenize",)), [], []),
        (planned("echo an hour", "up to date", ("tokenize",)), [], []),
        (planned("echo never", when=None), [], []),
        (planned("echo made", upstream=("tokenize",), makes_changes=True), [], ["train:", "  made"]),
        (
            planned("sh -c 'echo $PARROTFLOW_STAGES_TO_DO'"),
            ["train:", "  tokenize train"],
            ["train:", "  tokenize train"],
        ),
        (
            planned(f"sh -c 'echo error: no answer; exit {EXIT_UNAVAILABLE}'"),
            ["warning: no answer; train may fail when its turn comes"],
            ["warning: no answer; train may fail when its turn comes"],
        ),
    ],
)
def test_a_run_starts_the_checks_that_why_starts_and_those_that_make_changes(
    stage: PlannedStage, by_why: list[str], by_run: list[str]
) -> None:
    plan = Plan((BEFORE, stage))

    assert list(checks(plan, str)) == by_why
    assert list(checks(plan, str, before_run=True)) == by_run


def test_all_checks_run_and_then_all_failures_are_reported() -> None:
    refusing = planned("sh -c 'echo an hour; echo error: no room; exit 2'")
    said = checks(Plan((refusing, planned("no-such-program"), planned("echo fine"))), str)

    assert [next(said) for _ in range(4)] == ["train:", "  an hour", "train:", "  fine"]
    with pytest.raises(UserError, match=r"no room\ndvc\.yaml: train\.meta\.flow\.check: `no-such-program`: "):
        next(said)
