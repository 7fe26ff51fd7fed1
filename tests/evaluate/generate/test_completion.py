import pytest

from stages.evaluate.generate.completion import completion, header_sample, problem_requests
from stages.evaluate.generate.languages.headers import Header
from stages.evaluate.generate.params import GenerateParams
from stages.evaluate.generate.problem_sets import OpenSet
from stages.evaluate.generator import Generated, Request
from stages.evaluate.stopping import stop_at
from stages.formats.evaluation.completions import Ended
from stages.formats.evaluation.problems import Problem
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
    written = Generated(request=0, text="\n    x = 1\n    return x", ended=ended, ids=[])

    sample = header_sample(header, Request(header.prompt, 0, stop_at(())), written, params)

    assert (sample.body, sample.finished, sample.parses) == (body, finished, True)


def problem(prompt: str) -> Problem:
    return Problem(
        task_id="a/1", prompt=prompt, test="", entry_point="f", solution="", kind="humaneval", language="python"
    )


@pytest.mark.parametrize(
    ("prompt", "shown", "written", "kept"),
    [
        ('def f():\n    """One."""\n', 'def f():\n    """One."""', "\n    return 1", "    return 1"),
        ("def f():\n    ", "def f():", "\n    return 1", "return 1"),
        ("def f():\n    ", "def f():", "\n  return 1", "\n  return 1"),
        ("f = lambda:", "f = lambda:", " 1", " 1"),
        ("\n", "\n", "x = 1", "x = 1"),
    ],
)
def test_the_model_writes_the_white_space_at_a_prompts_end_and_the_completion_follows_it(
    prompt: str, shown: str, written: str, kept: str
) -> None:
    params = GenerateParams.model_validate(sections("generate")["generate"])
    asked, requests = problem_requests([OpenSet("set", "python", None, [problem(prompt)])], params)

    assert {request.prompt for request in requests} == {shown}
    assert all(request.end(f"{written}\ndef g") == len(written) for request in requests)
    done = completion(asked[0], requests[0], Generated(request=0, text=written, ended="eos", ids=[]))
    assert done.completion == kept
