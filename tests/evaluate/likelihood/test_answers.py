"""Answers: only they are scored, each token given the prompt and what precedes it; a prompt costs nothing."""

import json
import math
import re
from itertools import takewhile
from pathlib import Path

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from stages.evaluate.__main__ import main
from stages.evaluate.likelihood.answers import answer_set
from stages.evaluate.model import open_model, open_tokenizer
from stages.formats.documents import read_table
from stages.formats.evaluation.problems import read_problems
from stages.formats.evaluation.report import DOCUMENT_LOSSES, Evaluation
from stages.formats.model_folder import MODEL
from stages.runtime.errors import UserError
from tests.evaluate.likelihood.definition import one_token_at_a_time
from tests.small_project import ROOT
from tests.trained_project import CONTEXT_LENGTH, write_sections

PROBLEMS = ROOT / "evaluation/problems/python.jsonl"


def nats_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompt: str, answer: str) -> float:
    """The nats of the tokens that are not the beginning of the prompt too."""
    whole, alone = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt + answer, prompt))
    masked = len([*takewhile(lambda pair: pair[0] == pair[1], zip(whole, alone, strict=False))])
    read = [tokenizer.eos_token_id, *whole, tokenizer.eos_token_id]
    found = one_token_at_a_time(model, read, CONTEXT_LENGTH, CONTEXT_LENGTH * 3 // 4, masked)
    return sum(nats for _, nats in found)


def test_of_code_problems_the_reference_solutions_are_scored_after_their_prompts(project: Path) -> None:
    write_sections(project, evaluate__answers={"problems": "evaluation/problems/python.jsonl"})

    main()

    model, tokenizer = open_model(MODEL), open_tokenizer(MODEL)
    problems = read_problems(PROBLEMS)
    expected = [nats_of(model, tokenizer, problem.prompt, problem.solution) for problem in problems]
    losses = read_table(DOCUMENT_LOSSES).to_pandas()
    losses = losses[losses.set == "problems"]
    assert losses.nats.tolist() == pytest.approx(expected, rel=1e-5)
    assert losses.bytes.tolist() == [len(problem.solution.encode()) for problem in problems]
    report = Evaluation.read()
    found = report.sets["problems"]
    size = sum(len(problem.solution.encode()) for problem in problems)
    assert found.bits_per_byte == pytest.approx(sum(expected) / math.log(2) / size, rel=1e-5)
    assert found.interval_95.bits_per_byte is not None
    low, high = found.interval_95.bits_per_byte
    assert low < found.bits_per_byte < high
    metrics = json.loads((project / "reports/metrics/evaluate.json").read_text())
    assert metrics["answers_bits_per_byte"] == {"problems": found.bits_per_byte}
    assert "In problems only the answers are scored" in report.receipt.convention


def test_a_prompt_changes_what_an_answer_costs_but_not_what_is_counted(project: Path) -> None:
    answer, known = "    return 2 * number\n", "def double(number):\n"
    lines = [{"prompt": prompt, "completion": answer} for prompt in (known, "é" * 40, "")]
    (project / "mine.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    write_sections(project, evaluate__answers={"mine": "mine.jsonl"})

    main()

    losses = read_table(DOCUMENT_LOSSES).to_pandas()
    losses = losses[losses.set == "mine"]
    assert losses.bytes.tolist() == [len(answer)] * 3
    assert losses.nats.nunique() == 3
    model, tokenizer = open_model(MODEL), open_tokenizer(MODEL)
    expected = [nats_of(model, tokenizer, line["prompt"], answer) for line in lines]
    assert losses.nats.tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "a", "completion": ""}, "a.jsonl#1: completion: String should have at least 1 character"),
        ({"completion": "a"}, "a.jsonl#1: prompt: Field required"),
        ({"prompt": "a", "completion": "\ud800"}, "a.jsonl#1: completion: Input should be a valid string"),
        ({"text": "a"}, "a.jsonl#1: no field 'task_id'"),
    ],
)
def test_a_row_without_prompt_or_answer_is_named(tmp_path: Path, row: dict[str, str], message: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")

    with pytest.raises(UserError, match=re.escape(message)):
        answer_set("a", tmp_path / "a.jsonl")
