import pytest

from stages.evaluate.generate.completion import header_sample
from stages.evaluate.generate.languages.headers import Header
from stages.evaluate.generate.params import GenerateParams
from stages.evaluate.generator import Generated, Request
from stages.evaluate.stopping import stop_at
from stages.formats.evaluation.completions import Ended
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
