"""Model + held-out data -> metrics and samples: `python -m stages.evaluate`.

`PARROTFLOW_EVALUATE_BATCH` is the number of windows scored at once (default 16): it changes the time and the memory,
not the result.
"""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel

from stages.evaluate.likelihood.baselines import compress
from stages.evaluate.likelihood.report import Scores, describe, describe_samples
from stages.evaluate.likelihood.score import score_documents
from stages.evaluate.model import open_model, open_tokenizer, position_limit
from stages.evaluate.params import EvaluateParams
from stages.evaluate.samples.headers import choose_headers
from stages.evaluate.samples.samples import complete_headers, samples_data, samples_page
from stages.formats.documents import read_documents, require_documents
from stages.formats.reports import write_json
from stages.formats.tokens import TokenStore
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import UserError, run_stage
from stages.runtime.section import read_section
from stages.runtime.versions import require_locked

MODEL = Path("model")
DOCUMENTS = Path("data/clean/validation")
TOKENS = Path("data/tokens/validation")
REPORT = Path("reports/evaluate.json")
SAMPLES = Path("data/samples.json")
SAMPLES_PAGE = Path("data/samples.md")

BATCH_VARIABLE = "PARROTFLOW_EVALUATE_BATCH"
DEFAULT_BATCH = 16


def main() -> None:
    params = read_section("evaluate", EvaluateParams)
    require_locked("numpy", "pyarrow", "safetensors", "tokenizers", "torch", "transformers")
    require_documents(DOCUMENTS)
    store = TokenStore(TOKENS)
    model = open_model(MODEL)
    tokenizer = open_tokenizer(MODEL)
    context_length, stride = window_sizes(params, model)
    require_vocabulary(model, store)

    nats = score_documents(model, store, context_length, stride, batch_size())
    require_finite(nats)
    baselines = compress(document.text for document in read_documents(DOCUMENTS))
    headers = choose_headers(read_documents(DOCUMENTS), params.samples.count, params.samples.header_bytes, params.seed)
    completions = complete_headers(model, tokenizer, headers, params.samples, params.seed)

    scores = document_scores(nats, store)
    report = describe(scores, baselines, context_length, stride, params.bootstrap_resamples, params.seed)
    write_json(REPORT, report | {"samples": describe_samples(completions)})
    write_json(SAMPLES, samples_data(completions))
    atomic_write(SAMPLES_PAGE, samples_page(completions, params.samples))


def document_scores(nats: npt.NDArray[np.float64], store: TokenStore) -> Scores:
    """The losses beside what the store says of each document."""
    infos = list(store.document_infos())
    return Scores(
        nats=nats,
        tokens=store.document_lengths,
        bytes=np.array([info["bytes"] for info in infos], dtype=np.int64),
        sources=[info["source"] for info in infos],
    )


def window_sizes(params: EvaluateParams, model: PreTrainedModel) -> tuple[int, int]:
    """Context length and stride in tokens. Raises UserError where the model cannot read so far or text is skipped."""
    limit = position_limit(model)
    context_length = params.context_length or limit
    if context_length is None:
        raise UserError("evaluate.context_length = null: this model's positions have no limit; name a number of tokens")
    if limit is not None and context_length > limit:
        raise UserError(f"evaluate.context_length = {context_length}: the model reads at most {limit} tokens")
    stride = params.stride or context_length * 3 // 4
    if stride > context_length:
        raise UserError(f"evaluate.stride = {stride}: more than the context of {context_length} tokens would skip text")
    return context_length, stride


def require_vocabulary(model: PreTrainedModel, store: TokenStore) -> None:
    """Raise UserError if the store holds ids that the model does not know."""
    known: int = model.config.vocab_size
    if known < store.manifest.vocab_size:
        raise UserError(
            f"{MODEL} knows {known} tokens, {TOKENS} has {store.manifest.vocab_size}: they were made with different "
            "tokenizers; run `dvc repro`"
        )


def require_finite(nats: npt.NDArray[np.float64]) -> None:
    """Raise UserError if the model gives no loss that can be reported."""
    faulty = int(np.count_nonzero(~np.isfinite(nats)))
    if faulty:
        raise UserError(
            f"{MODEL}: the loss of {faulty} of {len(nats)} held-out documents is no finite number: the training has "
            "diverged; lower its learning rate and run `dvc repro`"
        )


def batch_size() -> int:
    """Windows scored at once, from the environment. Raises UserError if that is no positive whole number."""
    value = os.environ.get(BATCH_VARIABLE) or str(DEFAULT_BATCH)
    if not value.isdecimal() or int(value) < 1:
        raise UserError(f"{BATCH_VARIABLE}={value}: expected a whole number from 1 on")
    return int(value)


if __name__ == "__main__":
    run_stage(main)
