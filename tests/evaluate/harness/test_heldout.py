"""lm-eval's bits per byte of the held-out split, recomputed by our own scorer under lm-eval's convention."""

import math
from pathlib import Path

import pytest
import torch
from lm_eval.api.instance import Instance
from transformers import PreTrainedModel

from stages.evaluate.harness.params import HarnessParams
from stages.evaluate.harness.scoring import open_language_model, score
from stages.evaluate.likelihood.documents import Tokens, Window, document_windows
from stages.evaluate.likelihood.score import Scorer
from stages.evaluate.model import open_model, open_tokenizer
from stages.formats.model_folder import MODEL
from stages.formats.tokens import TokenStore
from tests.trained_project import CONTEXT_LENGTH

RELATIVE = 1e-6
"""Both add float32 logarithms; ours add them in float64."""


def by_lm_eval() -> list[float]:
    """The negative log-likelihood of each document in nats, unrounded."""
    params = HarnessParams(tasks=("heldout",), num_fewshot=None, limit=None, seed=0)
    (results,) = score(MODEL, params).results
    return [-sample["filtered_resps"][0] for sample in results["samples"]["heldout"]]


def lm_eval_windows(document: int, length: int) -> list[Window]:
    """Disjoint windows; the last one reaches back to be full. Context 4, 10 positions:

    position   0 1 2 3 4 5 6 7 8 9
    window 1   S S S S
    window 2           S S S S
    window 3               c c S S
    """
    disjoint = list(document_windows(document, length, CONTEXT_LENGTH, CONTEXT_LENGTH))
    last = disjoint.pop()
    return [*disjoint, Window(document, max(0, length - CONTEXT_LENGTH), last.scored_from, length)]


def nats_of(model: PreTrainedModel, store: TokenStore, windows: list[Window]) -> float:
    tokens = Tokens(store.read(0, store.manifest.tokens), store.document_lengths, store.manifest.eos_id)
    scorer = Scorer(model)
    return sum(float(scorer.token_losses(tokens, [window]).sum()) for window in windows)


def test_the_value_is_ours_in_its_windows_without_the_closing_id(project: Path) -> None:
    model, store = open_model(project / "model"), TokenStore(project / "data/tokens/validation")
    theirs = by_lm_eval()

    ours, closing = [], []
    for number, length in enumerate(store.document_lengths.tolist()):
        windows = lm_eval_windows(number, length - 1)  # all but the closing end-of-sequence id
        ours.append(nats_of(model, store, windows))
        last = Window(number, max(0, length - CONTEXT_LENGTH), length - 1, length)
        closing.append(nats_of(model, store, [last]))
        same = list(document_windows(number, length - 1, CONTEXT_LENGTH, CONTEXT_LENGTH))
        is_same = math.isclose(nats_of(model, store, same), theirs[number], rel_tol=RELATIVE)
        assert is_same == (length - 1 <= CONTEXT_LENGTH or (length - 1) % CONTEXT_LENGTH == 0)

    assert store.document_lengths.max() > 2 * CONTEXT_LENGTH
    assert theirs == pytest.approx(ours, rel=RELATIVE)
    assert min(closing) > 1  # nats: what `evaluate` adds to each document


@pytest.mark.parametrize(("context", "continuation"), [("x ", "= 1"), ("", "import os")])
def test_lm_eval_scores_a_continuation_after_the_end_of_sequence_id(
    project: Path, context: str, continuation: str
) -> None:
    request = Instance("loglikelihood", {}, (context, continuation), 0)

    ((found, _),) = open_language_model().loglikelihood([request], disable_tqdm=True)

    tokenizer = open_tokenizer(MODEL)
    encode = tokenizer.backend_tokenizer.encode
    whole = [tokenizer.eos_token_id, *encode(context + continuation, add_special_tokens=False).ids]
    read = 1 + len(encode(context.rstrip(), add_special_tokens=False).ids)
    with torch.no_grad():
        logits = open_model(MODEL)(torch.tensor([whole])).logits[0].double()
    expected = logits.log_softmax(-1)[range(read - 1, len(whole) - 1), whole[read:]].sum()
    assert found == pytest.approx(expected.item(), abs=1e-4)
