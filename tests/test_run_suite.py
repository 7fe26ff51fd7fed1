"""A test that fails once is flaky, one that fails twice is red: seen on toy suites with real pytest processes."""

import subprocess
import sys
from pathlib import Path

import pytest

RUN_SUITE = Path(__file__).with_name("run_suite.py")

FAILS_ONCE = """
import os, pathlib, signal, pytest

FIRST = not pathlib.Path("seen").exists()

def test_fine():
    pass

def test_fails_the_first_time():
    pathlib.Path("seen").touch()
    if FIRST:
        {first}
    else:
        {then}
"""


def run(folder: Path, text: str, *options: str) -> tuple[int, str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_toy.py").write_text(text)
    command = [sys.executable, str(RUN_SUITE), "-q", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("first", "processes"),
    [("assert 0", "0"), ("os.kill(os.getpid(), signal.SIGKILL)", "1")],
    ids=["a failed assertion", "a test process that dies"],
)
def test_a_test_that_fails_and_then_passes_alone_is_named_as_flaky(tmp_path: Path, first: str, processes: str) -> None:
    code, said = run(tmp_path, FAILS_ONCE.format(first=first, then="pass"), "-n", processes)

    assert code == 0, said
    assert said.splitlines()[-1] == (
        "green, but 1 flaky (failed, then passed alone): test_toy.py::test_fails_the_first_time"
    )


@pytest.mark.parametrize("then", ["assert 0", "pytest.skip('not here')"])
def test_a_test_that_does_not_pass_alone_either_is_red(tmp_path: Path, then: str) -> None:
    code, said = run(tmp_path, FAILS_ONCE.format(first="assert 0", then=then))

    assert code == 1
    assert "flaky" not in said


@pytest.mark.parametrize(
    ("first", "code"),
    [("pytest.exit('no more', returncode=3)", 3), ("raise KeyboardInterrupt", 2), ("os._exit(1)", 1)],
    ids=["pytest exits", "interrupt", "no failure recorded"],
)
def test_a_run_that_did_not_reach_its_end_is_red_and_not_repeated(tmp_path: Path, first: str, code: int) -> None:
    ended, said = run(tmp_path, FAILS_ONCE.format(first=first, then="pass"))

    assert ended == code
    assert "Once more" not in said


@pytest.mark.parametrize(
    "text",
    [
        "import no_such_module\n",
        "import os, pytest\n\n@pytest.mark.parametrize('n', [os.getpid()])\ndef test_fine(n):\n    pass\n",
    ],
    ids=["a module that cannot be imported", "names that differ between processes"],
)
def test_tests_that_cannot_be_collected_are_red_and_not_repeated(tmp_path: Path, text: str) -> None:
    code, said = run(tmp_path, text, "-n", "2")

    assert code == 1
    assert "red: the tests could not be collected" in said
    assert "Once more" not in said


def test_a_suite_without_failures_runs_once(tmp_path: Path) -> None:
    assert run(tmp_path, "def test_fine():\n    pass\n")[0] == 0


def test_more_failures_than_chance_explains_are_not_repeated(tmp_path: Path) -> None:
    many = "import pytest\n\n@pytest.mark.parametrize('n', range(21))\ndef test_broken(n):\n    assert 0\n"

    code, said = run(tmp_path, many)

    assert code == 1
    assert said.splitlines()[-1] == "red: 21 tests failed, too many to be flaky"
