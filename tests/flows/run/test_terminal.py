"""The tables of a run in the terminal."""

import io
import shlex

import pytest
from rich.console import Console

from flows.plan.changes import Reason
from flows.plan.graph import Plan, PlannedStage
from flows.run.outcome import StageOutcome
from flows.run.terminal import NodeRow, Terminal, columns, confirmed, cropped, plan_table, quoted
from stages.formats.pages import in_digits


def test_a_long_reason_is_cut_off_and_leaves_the_other_columns_as_they_are() -> None:
    table, shown = columns("stage", "state", "seconds", "why", cut="why"), io.StringIO()
    table.add_row("train", "running", "3 of about 5", cropped("a reason " * 20))

    Console(file=shown, width=60).print(table)

    heading, line = shown.getvalue().splitlines()
    assert heading.split() == ["stage", "state", "seconds", "why"]
    assert line.startswith("train  running  3 of about 5  a reason a reason")
    assert line.rstrip().endswith("…")


def test_80_columns_show_the_time_left_of_a_training_and_no_old_lines_of_ended_stages() -> None:
    terminal, shown = Terminal([NodeRow("corpus_page"), NodeRow("train", 85)]), io.StringIO()
    for name in ("corpus_page", "train"):
        terminal.started(name, 1)
        terminal.progress[name] = "step 110/120  loss 5.0402  00:10 left  2,001 tokens/s"
        terminal.sparklines[name] = "█▅▃▃▂▂▂▁▁▁▁"
    terminal.ended(StageOutcome("corpus_page", "ran", 7.6))

    Console(file=shown, width=80).print(terminal._view())

    _, ended, running = shown.getvalue().splitlines()
    assert ended.split() == ["corpus_page", "ran", "8"]
    assert "0 of ~85  step 110/120  loss 5.0402  00:10 left  " in running


@pytest.mark.parametrize(("typed", "meant"), [("y\n", True), ("YES\n", True), ("\n", False), ("", False)])
def test_only_yes_is_a_yes_and_the_end_of_the_input_is_none(
    monkeypatch: pytest.MonkeyPatch, typed: str, meant: bool
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))

    assert confirmed("Really?") is meant


def test_a_first_run_is_planned_in_one_line() -> None:
    plan = Plan(tuple(PlannedStage(name, "run", (Reason("never run", name),), ()) for name in ("collect", "train")))

    assert plan_table(plan) == "first run here: all stages run (collect, train)"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.39695, "1.397"), (9999.4, "9,999"), (9999.7, "10,000"), (14_191.2, "14,191"), (-2e4, "-20,000")],
)
def test_a_metric_has_four_digits_and_no_exponent_where_it_is_large(value: float, text: str) -> None:
    assert in_digits(value) == text


@pytest.mark.parametrize("prompt", ["def fibonacci(", "Es war's", 'er sagte: "$5!"', "a\\b `c`", "zwei\nZeilen", ""])
def test_a_prompt_is_shown_as_a_shell_takes_it(prompt: str) -> None:
    assert shlex.split(quoted(prompt)) == [prompt]
    assert (quoted(prompt) == f'"{prompt}"') is not any(sign in prompt for sign in '"$`\\!\n')
