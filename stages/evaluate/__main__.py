"""Model + held-out data -> metrics: `python -m stages.evaluate`.

`PARROTFLOW_EVALUATE_BATCH` is the number of windows scored at once (default 16): it changes the time and the memory,
not the result.
"""

import stages.evaluate.threads  # noqa: F401 (before torch)

# isort: split

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel

from stages.evaluate.likelihood.baselines import compress
from stages.evaluate.likelihood.report import Scores, evaluate_scores
from stages.evaluate.likelihood.score import score_documents
from stages.evaluate.model import open_model, position_limit
from stages.evaluate.params import EvaluateParams
from stages.formats.documents import CLEAN, read_documents, require_documents
from stages.formats.evaluation import write_evaluation
from stages.formats.model_folder import MODEL
from stages.formats.splits import VALIDATION
from stages.formats.tokens import TOKENS, TokenStore
from stages.runtime.entry import UserError, run_stage
from stages.runtime.environment import whole_number
from stages.runtime.section import read_section
from stages.runtime.versions import require_locked

HELD_OUT_DOCUMENTS = CLEAN / VALIDATION
HELD_OUT_TOKENS = TOKENS / VALIDATION

BATCH_VARIABLE = "PARROTFLOW_EVALUATE_BATCH"
DEFAULT_BATCH = 16


def main() -> None:
    params = read_section("evaluate", EvaluateParams)
    require_locked("numpy", "pyarrow", "safetensors", "torch", "transformers")
    require_documents(HELD_OUT_DOCUMENTS)
    store = TokenStore(HELD_OUT_TOKENS)
    model = open_model(MODEL)
    context_length, stride = window_sizes(params, model)
    require_vocabulary(model, store)

    nats = score_documents(model, store, context_length, stride, batch_size())
    require_finite(nats)
    baselines = compress(document.text for document in read_documents(HELD_OUT_DOCUMENTS))

    scores = document_scores(nats, store)
    write_evaluation(
        evaluate_scores(scores, baselines, context_length, stride, params.bootstrap_resamples, params.seed)
    )


def document_scores(nats: npt.NDArray[np.float64], store: TokenStore) -> Scores:
    """The losses, with the length and source of each document from the store."""
    infos = list(store.document_infos())
    return Scores(
        nats=nats,
        tokens=store.document_lengths,
        bytes=np.array([info["bytes"] for info in infos], dtype=np.int64),
        sources=[info["source"] for info in infos],
    )


def window_sizes(params: EvaluateParams, model: PreTrainedModel) -> tuple[int, int]:
    """Context length and stride in tokens. Raises UserError where they exceed the model's positions or skip text."""
    limit = position_limit(model)
    context_length = params.context_length or limit
    if context_length is None:
        raise UserError("evaluate.context_length = null: this model's positions have no limit; set a number of tokens")
    if limit is not None and context_length > limit:
        raise UserError(f"evaluate.context_length = {context_length}: the model reads at most {limit} tokens")
    stride = params.stride or context_length * 3 // 4
    if stride > context_length:
        raise UserError(f"evaluate.stride = {stride}: more than the context of {context_length} tokens would skip text")
    return context_length, stride


def require_vocabulary(model: PreTrainedModel, store: TokenStore) -> None:
    """Raise UserError if the store holds ids outside the model's vocabulary."""
    known: int = model.config.vocab_size
    if known < store.manifest.vocab_size:
        raise UserError(
            f"{MODEL} has a vocabulary of {known} tokens, {HELD_OUT_TOKENS} of {store.manifest.vocab_size}: they were "
            "made with different tokenizers; run `dvc repro`"
        )


def require_finite(nats: npt.NDArray[np.float64]) -> None:
    """Raise UserError if a document's loss is not a finite number."""
    faulty = int(np.count_nonzero(~np.isfinite(nats)))
    if faulty:
        raise UserError(
            f"{MODEL}: the loss of {faulty} of {len(nats)} held-out documents is not a finite number: the training "
            "diverged; lower its learning rate and run `dvc repro`"
        )


def batch_size() -> int:
    """Windows scored at once, from the environment. Raises UserError if it is not a positive whole number."""
    return whole_number(BATCH_VARIABLE, DEFAULT_BATCH)


if __name__ == "__main__":
    run_stage(main)
