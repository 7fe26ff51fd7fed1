"""Every reader of a model begins a text as training did: transformers, its pipeline, lm-eval, `parrotflow sample`."""

from pathlib import Path

import pytest
import torch
from lm_eval.api.instance import Instance
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from stages.evaluate.generator import prompt_tokens
from stages.evaluate.harness.scoring import open_language_model
from stages.evaluate.model import open_tokenizer

MODEL = Path("model")
PROMPTS = ["def add(a, b):", "x", "import os\n\n\ndef path"]


@pytest.fixture
def end_id(project: Path) -> int:
    return int(open_tokenizer(MODEL).eos_token_id)


def test_the_cards_tokenizer_gives_what_sample_reads(project: Path, end_id: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    for prompt in PROMPTS:
        assert tokenizer(prompt).input_ids == prompt_tokens(open_tokenizer(MODEL), prompt)
        assert tokenizer(prompt).input_ids[0] == end_id


def test_prompts_in_a_batch_are_continued_as_each_alone(project: Path) -> None:
    write = pipeline("text-generation", model=str(MODEL), device="cpu")
    options = {"max_new_tokens": 6, "do_sample": False, "return_full_text": False}

    together = [texts[0]["generated_text"] for texts in write(PROMPTS, batch_size=3, **options)]

    assert together == [write(prompt, **options)[0]["generated_text"] for prompt in PROMPTS]


@pytest.mark.parametrize(("context", "continuation"), [("def add", "(a, b)"), ("x ", "= 1"), ("", "import os")])
def test_lm_eval_scores_a_continuation_after_the_end_of_sequence_id(
    project: Path, end_id: int, context: str, continuation: str
) -> None:
    lm = open_language_model()
    request = Instance("loglikelihood", {}, (context, continuation), 0)

    ((found, _),) = lm.loglikelihood([request], disable_tqdm=True)

    encode = open_tokenizer(MODEL).backend_tokenizer.encode
    whole = [end_id, *encode(context + continuation, add_special_tokens=False).ids]
    read = 1 + len(encode(context.rstrip(), add_special_tokens=False).ids)
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(MODEL)(torch.tensor([whole])).logits[0].double()
    expected = logits.log_softmax(-1)[range(read - 1, len(whole) - 1), whole[read:]].sum()
    assert found == pytest.approx(expected.item(), abs=1e-4)
