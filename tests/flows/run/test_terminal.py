"""The tables of a run in the terminal, and the key of its server."""

import io
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rich.console import Console

from flows.run.server import KEY, key
from flows.run.terminal import columns, in_digits, one_line, quoted


def test_a_long_reason_is_cut_off_and_leaves_the_other_columns_as_they_are() -> None:
    table, shown = columns("stage", "state", "seconds", "why", cut="why"), io.StringIO()
    table.add_row("train", "running", "3 of about 5", one_line("a reason " * 20))

    Console(file=shown, width=60).print(table)

    heading, line = shown.getvalue().splitlines()
    assert heading.split() == ["stage", "state", "seconds", "why"]
    assert line.startswith("train  running  3 of about 5  a reason a reason")
    assert line.rstrip().endswith("…")


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


@pytest.fixture(autouse=True)
def in_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    KEY.parent.mkdir(parents=True)


def test_runs_that_begin_at_once_have_the_same_key_which_its_owner_alone_can_read() -> None:
    with ThreadPoolExecutor(8) as threads:
        keys = set(threads.map(lambda _: key(), range(8)))

    assert keys == {KEY.read_text(encoding="utf-8")}
    assert KEY.stat().st_mode & 0o077 == 0


def test_a_key_that_a_kill_left_empty_is_made_anew() -> None:
    KEY.touch()

    assert len(key()) >= 24
    assert key() == KEY.read_text(encoding="utf-8")
