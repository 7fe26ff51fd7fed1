"""Problems and completions: what is read is what was written, and what is wrong with a file is named."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.formats.evaluation.generation import Completion, read_completions, write_completions
from stages.formats.evaluation.problems import (
    Problem,
    as_problem,
    problems_sha256,
    read_problems,
    read_written_problems,
    write_problems,
)
from stages.runtime.errors import UserError

HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": "def one():\n",
    "entry_point": "one",
    "canonical_solution": "    return 1\n",
    "test": "def check(candidate):\n    assert candidate() == 1\n",
}
MBPP: dict[str, Any] = {
    "task_id": 601,
    "text": "Write a function that returns one.",
    "code": "def one():\n    return 1\n",
    "test_list": ["assert one() == 1", "assert math.isclose(one(), 1)"],
    "test_setup_code": "import math",
    "challenge_test_list": ["assert False"],
}
SANITIZED: dict[str, Any] = {
    "source_file": "x.ipynb",
    "task_id": 602,
    "prompt": MBPP["text"],
    "code": MBPP["code"],
    "test_list": MBPP["test_list"],
    "test_imports": ["import math"],
}


def write_rows(path: Path, *rows: object) -> Path:
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["set.jsonl", "set.jsonl.gz"])
def test_a_file_in_humanevals_format_is_read(tmp_path: Path, name: str) -> None:
    (problem,) = read_problems(write_rows(tmp_path / name, HUMANEVAL))

    assert problem == Problem(
        task_id="HumanEval/0",
        prompt="def one():\n",
        test=HUMANEVAL["test"],
        entry_point="one",
        solution="    return 1\n",
        kind="humaneval",
        language="python",
    )


def test_both_files_of_mbpp_are_read_and_the_prompt_is_a_docstring_with_the_first_test(tmp_path: Path) -> None:
    problems = read_problems(write_rows(tmp_path / "mbpp.jsonl", MBPP, SANITIZED))

    assert [problem.task_id for problem in problems] == ["MBPP/601", "MBPP/602"]
    for problem in problems:
        assert problem.prompt == '"""\nWrite a function that returns one.\nassert one() == 1\n"""\n'
        assert problem.kind == "mbpp"
        assert problem.test == "\n".join(["import math", *MBPP["test_list"]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "set.jsonl: holds no problems"),
        (b'{"task_id": "a"}\n', "set.jsonl#1: no field 'prompt'; expected HumanEval's"),
        (json.dumps(HUMANEVAL | {"prompt": 3}).encode(), "set.jsonl#1: prompt: Input should be a valid string"),
        (json.dumps(HUMANEVAL).encode() + b"\n" + json.dumps(HUMANEVAL).encode(), "task_id `HumanEval/0` occurs more"),
        (
            json.dumps(MBPP | {"test_list": "assert one() == 1"}).encode(),
            "set.jsonl#1: test_list: Input should be a valid list",
        ),
        (json.dumps(MBPP | {"test_list": []}).encode(), "set.jsonl#1: test_list: List should have at least 1 item"),
        (json.dumps(HUMANEVAL | {"prompt": "\ud800"}).encode(), "set.jsonl#1: half of a surrogate pair"),
    ],
)
def test_a_file_that_holds_something_else_is_refused_with_its_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "set.jsonl").write_bytes(content)

    with pytest.raises(UserError, match=re.escape(message)):
        read_problems(tmp_path / "set.jsonl")


texts = st.text(st.characters(exclude_categories=["Cs"]))
problems_of_any_text = st.builds(
    Problem,
    task_id=texts,
    prompt=texts,
    test=texts,
    entry_point=texts,
    solution=texts,
    kind=st.sampled_from(["humaneval", "mbpp"]),
    language=texts,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(problems=st.lists(problems_of_any_text, unique_by=lambda problem: problem.task_id))
def test_what_is_written_is_read_back_sorted(
    problems: list[Problem], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_problems(problems)

    assert read_written_problems() == sorted(problems, key=lambda problem: problem.task_id)
    assert problems_sha256(problems) == problems_sha256(problems[::-1])


def test_any_change_of_a_problem_changes_the_hash_of_the_set() -> None:
    problem = as_problem(HUMANEVAL, "here", "python")

    hashes = {problems_sha256([problem.model_copy(update={name: "x"})]) for name in Problem.model_fields}
    assert len(hashes | {problems_sha256([problem])}) == len(Problem.model_fields) + 1


completions_of_any_text = st.builds(
    Completion,
    task_id=texts,
    sample=st.integers(0, 1000),
    seed=st.integers(0, 2**64 - 1),
    completion=texts,
    ended=st.sampled_from(["eos", "stop", "length"]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(completions=st.lists(completions_of_any_text, unique_by=lambda one: one.sort_key))
def test_what_is_written_in_any_order_is_read_back_sorted(completions: list[Completion], tmp_path: Path) -> None:
    write_completions(completions, tmp_path / "a.jsonl")
    write_completions(completions[::-1], tmp_path / "b.jsonl")

    assert read_completions(tmp_path / "a.jsonl") == sorted(completions, key=lambda one: one.sort_key)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "completions.jsonl"
    whole = Completion(task_id="a", sample=0, seed=1, completion="x", ended="eos").model_dump_json()
    path.write_text(f"{whole}\n{whole.replace('eos', 'tired')}\n")

    with pytest.raises(
        UserError, match=r"completions\.jsonl: line 2: ended: Input should be 'eos', 'stop' or 'length'"
    ):
        read_completions(path)
    with pytest.raises(UserError, match=r"nowhere\.jsonl: cannot be read .* run `dvc repro generate`"):
        read_completions(tmp_path / "nowhere.jsonl")
