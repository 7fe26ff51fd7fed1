"""The checks of stages before anything starts, and what is hidden of secrets."""

from pathlib import Path

import pytest

from flows.plan.graph import Plan, PlannedStage, StageState
from flows.plan.settings import Policy, Program
from flows.run.programs import checks, redactor
from stages.runtime.errors import EXIT_UNAVAILABLE, UserError
from tests.flows.test_pipeline import run, toy

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


def test_a_run_checks_only_stages_that_others_run_before() -> None:
    policy = Policy(check=Program(command="sh -c 'echo error: no room; exit 2'"))
    before = PlannedStage("tokenize", "run", (), (), Policy())
    restored, waiting = (PlannedStage("train", state, (), ("tokenize",), policy) for state in ("restore", "run"))

    assert list(checks(Plan((before, restored)), str, before_run=True)) == []
    assert list(checks(Plan((waiting,)), str, before_run=True)) == []
    with pytest.raises(UserError, match="no room"):
        list(checks(Plan((before, waiting)), str, before_run=True))


def test_a_secret_that_another_begins_with_or_that_has_several_lines_is_hidden_whole() -> None:
    key = "-----BEGIN KEY-----\nAAAAbbbbCCCC\r\nDDDDeeeeFFFF\nab==\n"
    secrets = {"USER_TOKEN": "abcdefgh", "ADMIN_TOKEN": "abcdefgh-and-more", "MY_SECRET": key, "SHORT_TOKEN": "abc"}
    for names in (secrets, reversed(secrets)):
        redact = redactor({name: secrets[name] for name in names} | {"HOME": "/home/somebody"})

        assert redact("is abcdefgh-and-more, abcdefgh") == "is [ADMIN_TOKEN], [USER_TOKEN]"
        assert [redact(line) for line in key.splitlines()][1:3] == ["[MY_SECRET]", "[MY_SECRET]"]
        assert redact("abc in /home/somebody") == "abc in /home/somebody"


def planned(state: StageState, command: str, **program: object) -> PlannedStage:
    """A stage with a check."""
    policy = Policy.model_validate({"check": {"command": command, **program}})
    return PlannedStage("train", state, (), (), policy)


@pytest.mark.parametrize(("state", "is_asked"), [("run", True), ("maybe", True), ("restore", False), ("clean", False)])
def test_why_checks_the_stages_that_may_run(state: StageState, is_asked: bool) -> None:
    lines = list(checks(Plan((planned(state, "echo an hour"),)), str))

    assert lines == (["train:", "  an hour"] if is_asked else [])


def test_a_check_without_a_network_is_a_warning() -> None:
    asking = planned("run", f"sh -c 'echo error: no answer; exit {EXIT_UNAVAILABLE}'")

    assert list(checks(Plan((asking,)), str)) == ["warning: no answer; train may fail when its turn comes"]


def test_a_check_does_not_run_without_its_condition() -> None:
    assert list(checks(Plan((planned("run", "echo never", when=None),)), str)) == []


def test_only_a_run_starts_a_check_that_makes_changes() -> None:
    making = planned("run", "echo made", makes_changes=True)
    before = PlannedStage("tokenize", "run", (), (), Policy())

    assert list(checks(Plan((making,)), str)) == []
    later = PlannedStage("publish", "run", (), ("tokenize",), making.policy)
    assert list(checks(Plan((before, later)), str, before_run=True)) == ["publish:", "  made"]


def test_all_checks_run_and_then_all_failures_are_reported() -> None:
    refusing = planned("run", "sh -c 'echo an hour; echo error: no room; exit 2'")
    said = checks(Plan((refusing, planned("run", "no-such-program"), planned("run", "echo fine"))), str)

    assert [next(said) for _ in range(4)] == ["train:", "  an hour", "train:", "  fine"]
    with pytest.raises(UserError, match=r"no room\ndvc\.yaml: train\.meta\.flow\.check: `no-such-program`: "):
        next(said)


def test_a_check_knows_the_stages_that_are_to_run() -> None:
    stages = (
        planned("run", "sh -c 'echo $PARROTFLOW_STAGES_TO_DO'"),
        PlannedStage("tokenize", "run", (), (), Policy()),
    )

    assert list(checks(Plan(stages), str)) == ["train:", "  train tokenize"]
