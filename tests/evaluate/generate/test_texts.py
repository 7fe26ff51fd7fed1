"""Which texts are asked for, from headers and from sets of problems, and what is kept of them."""

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from stages.evaluate.generate.generator import Generated, GenerationRequest, prompt_tokens
from stages.evaluate.generate.languages import Header
from stages.evaluate.generate.params import GenerateParams, ProblemSet, Sampling
from stages.evaluate.generate.rows import stop_at
from stages.evaluate.generate.texts import (
    completion,
    header_sample,
    open_sets,
    problem_requests,
    prompt_to_read,
    written_texts,
)
from stages.evaluate.model import open_tokenizer
from stages.formats.evaluation.generation import FinishReason
from stages.formats.evaluation.problems import Problem
from stages.runtime.errors import UserError
from stages.tokenizer.train import train_bpe
from tests.small_project import sections


@pytest.mark.parametrize(
    ("language", "ended", "body", "finished"),
    [
        ("python", "eos", "\n    x = 1\n    return x\n", True),
        ("python", "stop", "\n    x = 1\n    return x\n", True),
        ("python", "length", "\n    x = 1\n", False),
        ("text", "length", "\n    x = 1\n    return x\n", False),  # a paragraph may be one line
    ],
)
def test_only_code_whose_tokens_were_used_up_is_cut_off_and_loses_its_last_line(
    language: str, ended: FinishReason, body: str, finished: bool
) -> None:
    params = GenerateParams.model_validate(sections("generate")["generate"] | {"language": language})
    header = Header("id", "source", "path.py", 1, before="", signature="def f():")
    written = Generated(
        request=0, text="\n    x = 1\n    return x", finish_reason=ended, ids=[], pieces=[], log_probabilities=[]
    )

    request = GenerationRequest(header.prompt, 0, stop_at(()), Sampling(temperature=0, top_p=1, max_new_tokens=20))
    sample = header_sample(header, request, written, params)

    assert (sample.body, sample.finished, sample.parses) == (body, finished, True if language == "python" else None)


def problem(prompt: str) -> Problem:
    return Problem(
        task_id="a/1", prompt=prompt, test="", entry_point="f", solution="", kind="humaneval", language="python"
    )


def ask(one: Problem, tokenizer: PreTrainedTokenizerFast) -> tuple[tuple[Problem, int], GenerationRequest]:
    """The first sample of a problem, with the stop strings of its language."""
    params = GenerateParams.model_validate(sections("generate")["generate"])
    asked, requests = problem_requests([(params.problems.sets[0], [one])], params, tokenizer)
    assert {request.prompt for request in requests} == {requests[0].prompt}
    return asked[0], requests[0]


@pytest.mark.parametrize(
    ("prompt", "read", "written", "stored"),
    [
        # What is written begins with the white space that was removed from the prompt.
        ("def f():\n", "def f():", "\n    return 1", "    return 1"),
        ("def f():\n    ", "def f():", "\n    return 1", "return 1"),
        ("def f():\n", "def f():", "\n\n    return 1", "\n    return 1"),
        # It does not.
        ("def f():\n    ", "def f():", "\n\treturn 1", "\n\treturn 1"),
        ("def f():\n", "def f():", "", ""),
        # Nothing was removed.
        ("def f(", "def f(", "):\n    return 1", "):\n    return 1"),
    ],
)
def test_the_model_writes_the_white_space_at_a_prompts_end_and_the_completion_follows_it(
    project: Path, prompt: str, read: str, written: str, stored: str
) -> None:
    asked, request = ask(problem(prompt), open_tokenizer(project / "model"))

    done = completion(asked, request, Generated(0, written, "eos", ids=[], pieces=[], log_probabilities=[]))

    assert (request.prompt, done.completion) == (read, stored)
    if written.startswith("\n    "):
        assert request.end(f"{written}\ndef g") == len(written)


FUNCTION = 'def f():\n    """Return"""\n    total = 1\n    return total\n'
PROMPT = FUNCTION[: FUNCTION.index("    total = 1")]


@pytest.mark.parametrize(("pattern", "read"), [("gpt2", PROMPT.rstrip()), ("gpt4", PROMPT)])
def test_what_is_read_of_a_prompt_ends_where_a_token_of_the_function_does(pattern: str, read: str) -> None:
    """A newline is in one token with the indent after it, or with the quotation mark before it."""
    bpe = train_bpe([[FUNCTION, PROMPT * 9]], 300, pattern)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|endoftext|>")

    assert prompt_to_read(PROMPT, tokenizer) == read

    ids = prompt_tokens(tokenizer, read)
    assert prompt_tokens(tokenizer, FUNCTION)[: len(ids)] == ids
    other = PROMPT if pattern == "gpt2" else PROMPT.rstrip()
    ids = prompt_tokens(tokenizer, other)
    assert prompt_tokens(tokenizer, FUNCTION)[: len(ids)] != ids


def test_two_sets_with_one_task_id_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"task_id": "A/0", "prompt": "p", "entry_point": "f", "canonical_solution": "s", "test": "check = print"}
    one = ProblemSet(path="evaluation/problems/one.jsonl", language="python", stop=None)
    other = ProblemSet(path="evaluation/problems/other.jsonl", language="python", stop=["\nx"])
    (tmp_path / "evaluation/problems").mkdir(parents=True)
    for problems in (one, other):
        Path(problems.path).write_text(json.dumps(row) + "\n")

    assert [len(problems) for _, problems in (*open_sets([one]), *open_sets([other]))] == [1, 1]
    with pytest.raises(UserError, match="task_id `A/0` occurs more than once"):
        open_sets([one, other])


@pytest.mark.usefixtures("project")
def test_only_texts_that_the_page_shades_keep_their_pieces_and_probabilities() -> None:
    sampling = Sampling(max_new_tokens=5, temperature=0.8, top_p=0.95)
    requests = [GenerationRequest(f"x{number}", number, stop_at(()), sampling) for number in range(3)]

    written, every = (written_texts(requests, 2, shaded) for shaded in ({1}, range(3)))

    assert [text.text for text in written] == [text.text for text in every]
    assert [bool(text.pieces) for text in written] == [bool(text.log_probabilities) for text in written]
    assert [bool(text.pieces) for text in written] == [False, True, False]
    assert written[1] == every[1]
