"""Programs that are right pass, whatever plain data they take and give, and the verdict says why others do not."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from stages.evaluate.score import sandbox
from stages.evaluate.score.inside.codec import NotPlainError, decode
from stages.evaluate.score.inside.isolate import PROCESSES
from stages.evaluate.score.judge import Judge, outcome
from stages.evaluate.score.params import Limits
from stages.evaluate.score.programs import Program, program
from stages.evaluate.score.sandbox import Ended
from stages.formats.evaluation.problems import Problem, read_problems
from stages.formats.evaluation.verdicts import Outcome
from stages.runtime.entry import UserError
from tests.evaluate.score.conftest import LIMITS, Run, RunPython
from tests.small_project import ROOT

ONE = "def check(candidate):\n    assert candidate() == 1\n"

VALUES = (
    "None, True, 3, -(2**300), 0.1, float('inf'), 1 + 2j, 'text \\ud800 \\n', b'\\0bytes', bytearray(b'x'), [1, [2]], "
    "(1, (2,)), {1, 'a'}, frozenset({2}), {'a': [1], (1, 2): {3: None}}, int, ValueError"
)


def test_values_of_pythons_own_types_cross_both_ways_as_they_are(run: Run) -> None:
    test = f"""
def check(candidate):
    for value in ({VALUES}):
        back = candidate(value)
        assert back == value and type(back) is type(value), value
    nan = candidate(float("nan"))
    assert nan != nan
"""
    assert run("def f(value): return value", test) == Outcome("passed")


def test_what_a_function_does_to_its_arguments_reaches_the_caller(run: Run) -> None:
    code = """
def f(numbers, table, seen):
    numbers.sort()
    table["new"] = [1]
    table["old"].append(2)
    seen.clear()
"""
    test = """
def check(candidate):
    numbers, inner, seen = [3, 1, 2], [1], {1}
    table = {"old": inner}
    assert candidate(numbers, table, seen=seen) is None
    assert numbers == [1, 2, 3] and table == {"old": [1, 2], "new": [1]} and seen == set()
    assert inner == [1, 2]
"""
    assert run(code, test) == Outcome("passed")


def test_a_test_can_hand_over_a_function(run: Run) -> None:
    code = "def f(key, values): return sorted(values, key=key)"
    test = """
def check(candidate):
    assert candidate(lambda x: -x, [1, 3, 2]) == [3, 2, 1]
    assert candidate(len, ["aa", "b"]) == ["b", "aa"]
"""
    assert run(code, test) == Outcome("passed")


def test_assertions_can_use_functions_generators_and_objects_of_the_candidate(judge: Judge) -> None:
    code = """
import collections
class Node:
    def __init__(self, value): self.value, self.next = value, None
    def total(self): return self.value + (self.next.total() if self.next else 0)
Pair = collections.namedtuple("Pair", "a b")
def counter(n):
    yield from range(n)
def adder(n):
    return lambda m: n + m
def counts(text): return collections.Counter(text)
def total(node): return node.total()
"""
    test = """
first = Node(1)
first.next = Node(41)
assert total(first) == 42 and first.next.value == 41
assert list(counter(3)) == [0, 1, 2] and sum(counter(4)) == 6
assert adder(2)(3) == 5
assert Pair(1, 2) == (1, 2) and counts("aab") == {"a": 2, "b": 1}
assert [counter, 1][1] == 1 and counter(1) != counter(1)
"""
    assert judge.judge(Program(code, "", test, "")) == Outcome("passed")


def test_an_exception_of_a_builtin_type_arrives_as_one(run: Run) -> None:
    test = """
def check(candidate):
    try:
        candidate("x")
    except ValueError as error:
        assert "invalid literal" in str(error)
    else:
        assert False
"""
    assert run("def f(text): return int(text)", test) == Outcome("passed")
    assert run("def f(text): return text.x", test) == Outcome("exception", "AttributeError")


def test_programs_without_a_seed_and_sets_of_strings_give_the_same_again(run: Run) -> None:
    words = "list({'a', 'b', 'c', 'd', 'e', 'f'})"
    seeded = {"PYTHONHASHSEED": "0"}
    order = subprocess.run(
        [sys.executable, "-c", f"print({words})"], capture_output=True, text=True, env=seeded, check=True
    )
    code = f"import random\ndef f(): return random.random(), {words}"
    test = f"""
def check(candidate):
    import random
    random.seed(0)
    assert candidate() == (random.random(), {order.stdout})
"""

    assert run(code, test) == Outcome("passed")


LIBRARY = (
    "range(3), range(9, 0, -2), Fraction(1, 3), Decimal('1.10'), date(2020, 2, 29), datetime(2020, 1, 1, 5), time(1), "
    "timedelta(1, 2, 3), deque([1, 2]), deque([1], 3), OrderedDict(b=1, a=2), Counter('aab'), defaultdict(list, a=[1])"
)
IMPORTS = """
from collections import *
from datetime import *
from decimal import Decimal
from fractions import Fraction
"""


def test_values_of_the_standard_library_cross_both_ways_as_they_are(run: Run) -> None:
    test = f"""{IMPORTS}
def check(candidate):
    for value in ({LIBRARY}):
        back = candidate(value)
        assert back == value and type(back) is type(value) and repr(back) == repr(value), value
    queue, counts = deque([1]), defaultdict(int)
    candidate(queue, counts)
    assert queue == deque([1, 2]) and counts == {{"x": 1}}
"""
    code = """
def f(value, counts=None):
    if counts is not None:
        value.append(2)
        counts["x"] += 1
    return value
"""
    assert run(code, test) == Outcome("passed")


@pytest.mark.parametrize(
    "text", ['{"Fraction": ["1e999999999"]}', '{"deque": [{"reference": 1}]}', '{"range": []}', '{"date": ["x"]}']
)
def test_parts_that_make_no_value_of_the_library_are_refused(text: str) -> None:
    with pytest.raises(NotPlainError):
        decode(json.loads(text), resolve=lambda number: object())


def test_an_object_of_the_candidate_is_asked_for_its_text_and_what_it_contains(run: Run) -> None:
    code = """
class Trie:
    def __contains__(self, word): return word == "a"
    def __str__(self): return "trie"
    def __repr__(self): return "<trie>"
def f(): return Trie()
"""
    test = """
def check(candidate):
    made = candidate()
    assert "a" in made and "b" not in made
    assert (str(made), repr(made), f"{made}") == ("trie", "<trie>", "trie")
"""
    assert run(code, test) == Outcome("passed")


@pytest.mark.parametrize(
    "end", ["class Box:\n    def f(self):\n", "x = [\n    1,\n", 'def f():\n    """Of\n', "if True:\n    x = (\n"]
)
def test_a_prompt_may_end_within_anything(run: Run, end: str) -> None:
    prompt = f"def twice(x): return 2 * x\n\n{end}"

    assert run("def f(x): return 2 * x", "def check(c):\n    assert c(4) == twice(4)\n", prompt) == Outcome("passed")


def test_a_prompt_may_end_with_a_header_without_a_body(run: Run) -> None:
    prompt = "def twice(x): return 2 * x\n\ndef f(x):\n"

    assert run(f"{prompt}    return 2 * x", "def check(c):\n    assert c(4) == twice(4)\n", prompt) == Outcome("passed")


def test_assertions_without_a_check_call_the_functions_by_their_names(judge: Judge) -> None:
    problem = Problem(
        task_id="MBPP/1",
        prompt="",
        test="import math\nassert half(3) == 1.5\nassert math.isclose(half(1), 0.5)",
        entry_point="",
        solution="def half(x):\n    return x / 2",
        kind="mbpp",
        language="python",
    )

    assert judge.judge(program(problem, problem.solution)) == Outcome("passed")
    assert judge.judge(program(problem, "def half(x):\n    return x")) == Outcome("assertion")
    assert judge.judge(program(problem, "def other(x):\n    return x / 2")) == Outcome("exception", "NameError")


def test_every_solution_of_our_own_problems_passes_and_no_empty_one_does(judge: Judge) -> None:
    problems = read_problems(ROOT / "problems/python.jsonl")

    for problem in problems:
        assert judge.judge(program(problem, problem.solution)) == Outcome("passed"), problem.task_id
        assert judge.judge(program(problem, "    pass\n")) != Outcome("passed"), problem.task_id


def test_a_problem_in_a_language_that_cannot_be_run_is_refused() -> None:
    problem = read_problems(ROOT / "problems/python.jsonl", language="cobol")[0]

    with pytest.raises(UserError, match=r"programs in cobol cannot be run \(known: python\)"):
        program(problem, "")


SLOW = Program("import time\ndef f():\n    time.sleep(0.5)\n    return 1", "", ONE, "f")


@pytest.mark.parametrize("lost", ["of the tests", "of the candidate"])
def test_a_program_whose_sandbox_is_killed_is_judged_again_in_a_new_one(lost: str) -> None:
    with closing(Judge(LIMITS)) as judge:
        judge.wait_until_ready()
        sandbox = judge._sandboxes[lost == "of the candidate"]
        sandbox._process.kill()
        sandbox._process.wait()

        assert judge.judge(SLOW) == Outcome("passed")


@pytest.mark.parametrize("kills", [1, 2])
def test_a_program_that_the_kernel_kills_for_want_of_memory_is_judged_again_once(kills: int) -> None:
    code = "import time\ndef f():\n    held = b'x' * 100_000_000\n    time.sleep(0.5)\n    return 1"
    with closing(Judge(LIMITS)) as judge, ThreadPoolExecutor(1) as thread:
        judge.wait_until_ready()
        outcome = thread.submit(judge.judge, Program(code, "", ONE, "f"))
        killed: set[int] = set()
        while len(killed) < kills and not outcome.done():
            for process in processes_above(80_000_000):
                process.kill()
                killed.add(process.pid)

        assert outcome.result() == Outcome("passed" if kills == 1 else "lost")
        assert judge.judge(SLOW) == Outcome("passed")


def test_a_candidate_that_is_killed_after_it_has_closed_its_connection_is_not_called_dead() -> None:
    code = "import os, time\ndef f():\n    held = b'x' * 100_000_000\n    os.closerange(0, 256)\n    time.sleep(5)"
    with closing(Judge(LIMITS)) as judge, ThreadPoolExecutor(1) as thread:
        judge.wait_until_ready()
        outcome = thread.submit(judge.judge, Program(code, "", ONE, "f"))
        killed: set[int] = set()
        while len(killed) < 2 and not outcome.done():
            for process in processes_above(80_000_000):
                process.kill()
                killed.add(process.pid)

        assert outcome.result() == Outcome("lost")


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(cpu_seconds=1, wall_seconds=0.0001, memory_megabytes=256), "wall_seconds = 0.0001.*: timeout"),
    ],
)
def test_limits_under_which_nothing_can_run_are_named(limits: Limits, reason: str) -> None:
    with closing(Judge(limits)) as judge, pytest.raises(UserError, match=f"score.limits .*{reason}"):
        judge.wait_until_ready()


def processes_above(size: int) -> list[psutil.Process]:
    """The processes in sandboxes of this process that hold more bytes."""
    found = []
    for outermost in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            found += [one for one in outermost.children(recursive=True) if one.memory_info().rss > size]
    return found


def test_the_threads_of_one_candidate_leave_another_as_many_as_it_may_have() -> None:
    limits = Limits(cpu_seconds=3, wall_seconds=30.0, memory_megabytes=16_000)  # each thread reserves address space
    code = f"""
import threading, time
def f():
    threads = [threading.Thread(target=time.sleep, args=(1,)) for _ in range({PROCESSES - 14})]
    for one in threads: one.start()
    for one in threads: one.join()
    return 1
"""
    same = Program(code, "", ONE, "f")

    with closing(Judge(limits)) as first, closing(Judge(limits)) as second, ThreadPoolExecutor(2) as threads:
        first.wait_until_ready()
        second.wait_until_ready()
        outcomes = list(threads.map(lambda judge: judge.judge(same), [first, second]))

    assert outcomes == [Outcome("passed"), Outcome("passed")]


def test_a_process_with_more_than_1023_descriptors_judges(run_python: RunPython) -> None:
    assert (
        run_python("""
resource.setrlimit(resource.RLIMIT_NOFILE, (2000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
with closing(Judge(LIMITS)) as judge:
    print(judge.judge(RIGHT).result)
""")
        == "passed"
    )


def test_no_more_workers_start_than_the_limit_of_open_files_allows(run_python: RunPython, tmp_path: Path) -> None:
    assert (
        run_python(f"""
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 400))
os.environ["PARROTFLOW_WORKERS"] = "100"
programs = [Program(f"def f(): return {{n}}", "", f"def check(f): assert f() == {{n}}", "f") for n in range(100)]
outcomes = judge_programs({{one.key: one for one in programs}}, LIMITS, Path({str(tmp_path / "known")!r}))
print(len(outcomes), {{one.result for one in outcomes.values()}}, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
""")
        == "100 {'passed'} 400"
    )


def test_a_pass_counts_only_from_a_process_that_ended_well() -> None:
    assert outcome(b'["passed", ""]', Ended(0, False), Ended(-9, False)) == Outcome("passed")
    assert outcome(b'["passed", ""]', Ended(-9, False), Ended(0, False)) == Outcome("died")
    assert outcome(b'["won", ""]', Ended(0, False), Ended(0, False)) == Outcome("died")
    assert outcome(b"", Ended(0, True), Ended(0, False)) == Outcome("timeout")
    assert outcome(b'["died", ""]', Ended(0, False), Ended(-9, True)) == Outcome("timeout")


@pytest.mark.parametrize(
    ("bwrap", "reason"),
    [
        ("", r"bubblewrap \(`bwrap`\) is not installed"),
        ("echo bwrap: Creating new namespace failed: Operation not permitted >&2; exit 1", "new namespace failed"),
        ("exit 0", "it did not start"),
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
        Judge(LIMITS).wait_until_ready()

    assert "generated code never runs without isolation" in str(error.value)
    assert "apt-get install bubblewrap" in str(error.value)


def test_scoring_loads_neither_torch_nor_a_model() -> None:
    code = "import sys, stages.evaluate.score.__main__; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)

    assert done.stdout == "[]\n"
    assert sandbox.LEVEL == "bubblewrap+rlimits+seccomp"
