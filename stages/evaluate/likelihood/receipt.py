"""What the numbers belong to: the documents, the weights, the windows, the libraries."""

from collections import Counter
from collections.abc import Sequence

from stages.evaluate.likelihood.models import ScoredModel
from stages.evaluate.likelihood.report import Bootstrap
from stages.evaluate.likelihood.scored import ScoredSet
from stages.formats.evaluation.report import EvaluationReceipt, ModelReceipt, SetReceipt
from stages.formats.reports import releases


def evaluation_receipt(
    scored: Sequence[ScoredSet], models: Sequence[ScoredModel], bootstrap: Bootstrap
) -> EvaluationReceipt:
    """Of each set as the trained model has scored it, and of all models, the trained one first."""
    return EvaluationReceipt(
        convention=convention(models[0], bootstrap.resamples),
        sets={one.held_out.name: set_receipt(one) for one in scored},
        models={model.name: model_receipt(model) for model in models},
        versions=releases(),
        bootstrap_resamples=bootstrap.resamples,
        bootstrap_seed=bootstrap.seed,
    )


def set_receipt(scored: ScoredSet) -> SetReceipt:
    """A set, with the number of documents behind each of its metrics."""
    return SetReceipt(
        path=scored.held_out.path.as_posix(),
        documents_sha256=scored.held_out.facts.sha256,
        documents_per_source=dict(Counter(scored.scores.sources)),
        documents_per_length=dict(Counter(scored.scores.lengths)),
    )


def model_receipt(model: ScoredModel) -> ModelReceipt:
    """A model's content, and its windows."""
    return ModelReceipt(
        weights_sha256=model.sha256,
        revision=model.revision,
        context_length=model.sizes.context_length,
        stride=model.sizes.stride,
    )


def convention(model: ScoredModel, resamples: int) -> str:
    """How the metrics were computed, in prose."""
    return (
        "Every token of a held-out set is scored once. Each document is scored on its own, after an "
        "end-of-sequence id (a baseline after its beginning-of-sequence id, if it has one), and the id that closes "
        "it is scored too. "
        f"Windows of {model.sizes.context_length} tokens advance by {model.sizes.stride}. "
        "Loss is nats per token over all tokens, perplexity its exponential, bits per byte the same sum over the UTF-8 "
        f"bytes of the text; float32. Intervals: 95 % percentile bootstrap over documents, {resamples} draws. "
        "Compressors: all documents as one stream. lm-eval's bits per byte differ slightly: its windows advance "
        "by the whole context, so that tokens have less context on average (only the last window of a document reaches "
        "back over tokens already scored, to be full), and it does not score the closing id."
    )
