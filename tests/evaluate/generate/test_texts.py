"""Which texts are asked for, from headers and from sets of problems, and what is kept of them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from stages.evaluate.generate.languages import Header
from stages.evaluate.generate.params import GenerateParams, ProblemSet, Sampling
from stages.evaluate.generate.texts import OpenSet, completion, header_sample, open_sets, problem_requests
from stages.evaluate.generator import Generated, GenerationRequest, generate, prompt_tokens
from stages.evaluate.model import open_model, open_tokenizer
from stages.evaluate.rows import stop_at
from stages.formats.evaluation.generation import Ended
from stages.formats.evaluation.problems import Problem
from stages.runtime.entry import UserError
from stages.tokenizer.train import train
from tests.small_project import sections


@pytest.mark.parametrize(
    ("ended", "body", "finished"),
    [
        ("eos", "\n    x = 1\n    return x\n", True),
        ("stop", "\n    x = 1\n    return x\n", True),
        ("length", "\n    x = 1\n", False),
    ],
)
def test_only_a_text_whose_tokens_were_used_up_is_cut_off_and_loses_its_last_line(
    ended: Ended, body: str, finished: bool
) -> None:
    params = GenerateParams.model_validate(sections("generate")["generate"])
    header = Header("id", "source", "path.py", 1, before="", signature="def f():")
    written = Generated(
        request=0, text="\n    x = 1\n    return x", ended=ended, ids=[], pieces=[], log_probabilities=[]
    )

    request = GenerationRequest(header.prompt, 0, stop_at(()), Sampling(temperature=0, top_p=1, max_new_tokens=20))
    sample = header_sample(header, request, written, params)

    assert (sample.body, sample.finished, sample.parses) == (body, finished, True)


def problem(prompt: str) -> Problem:
    return Problem(
        task_id="a/1", prompt=prompt, test="", entry_point="f", solution="", kind="humaneval", language="python"
    )


def ask(one: Problem, tokenizer: PreTrainedTokenizerFast) -> tuple[tuple[Problem, int], GenerationRequest]:
    """The first sample of a problem, with the stop strings of its language."""
    params = GenerateParams.model_validate(sections("generate")["generate"])
    asked, requests = problem_requests([OpenSet("set", None, [one])], params, tokenizer)
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


FUNCTION = 'def f():\n    """Return"""\n    total = 1\n    return total\n\n\ndef g():\n'
PROMPT = FUNCTION[: FUNCTION.index("    total = 1")]


@pytest.mark.parametrize(("pattern", "boundary"), [("gpt2", '"""|\n    total'), ("gpt4", '"""\n|    total')])
def test_a_model_completes_a_prompt_that_ends_with_a_newline_whichever_token_holds_the_newline(
    project: Path, pattern: str, boundary: str
) -> None:
    before, behind = boundary.split("|")
    bpe = train([[FUNCTION, PROMPT * 9]], 300, pattern)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|endoftext|>")
    tokens = [tokenizer.decode([id]) for id in range(len(tokenizer))]
    assert ("\n   " in tokens, '"""\n' in tokens) == (pattern == "gpt2", pattern == "gpt4")
    asked, request = ask(problem(PROMPT), tokenizer)
    assert request.prompt.endswith(before)
    assert FUNCTION.removeprefix(request.prompt).startswith(behind)
    model = open_model(project / "model")
    learn(model, tokenizer, FUNCTION)

    greedily = replace(request, sampling=Sampling(temperature=0, top_p=1, max_new_tokens=30))
    (written,) = generate(model, tokenizer, [greedily], width=48)

    assert PROMPT + completion(asked, request, written).completion == FUNCTION[: FUNCTION.index("\ndef g")]


def learn(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    """Train the model until it writes this text and nothing else."""
    ids = torch.tensor([prompt_tokens(tokenizer, text)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimizer.step()


def test_two_sets_with_one_task_id_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"task_id": "A/0", "prompt": "p", "entry_point": "f", "canonical_solution": "s", "test": "check = print"}
    one = ProblemSet(path="evaluation/problems/one.jsonl", language="python", stop=None)
    other = ProblemSet(path="evaluation/problems/other.jsonl", language="python", stop=["\nx"])
    (tmp_path / "evaluation/problems").mkdir(parents=True)
    for problems in (one, other):
        Path(problems.path).write_text(json.dumps(row) + "\n")

    assert [opened.stop for opened in (*open_sets([one]), *open_sets([other]))] == [None, ("\nx",)]
    with pytest.raises(UserError, match="task_id `A/0` occurs more than once"):
        open_sets([one, other])
