"""The report: the metrics of each set, each with its interval. And the receipt: what these numbers belong to."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stages.evaluate.likelihood.documents import HeldOutSet
from stages.evaluate.likelihood.score import ScoredModel, ScoredSet, Scores
from stages.formats.documents import CLEAN, read_shard, shard_paths, write_table
from stages.formats.evaluation.intervals import FEW, RESAMPLES, SEED, Floats, mean_difference, ratio_interval
from stages.formats.evaluation.report import (
    DOCUMENT_LOSSES,
    MAX_SOURCES,
    MIN_DOCUMENTS,
    BaselineComparison,
    Evaluation,
    EvaluationReceipt,
    HeldOutMetrics,
    Interval,
    Intervals,
    ModelReceipt,
    SetReceipt,
)
from stages.formats.model_folder import weights_sha256
from stages.formats.reports import releases, significant
from stages.formats.tokens import TRAIN, VALIDATION

DOCUMENT_LOSS = pa.schema(
    [
        ("set", pa.string()),
        ("model", pa.string()),
        ("id", pa.string()),  # sha256 of the text
        ("source", pa.string()),
        ("path", pa.string()),
        ("bytes", pa.int64()),  # of the text in UTF-8
        ("tokens", pa.int64()),  # of the model's tokenizer, the closing id counted
        ("nats", pa.float64()),  # negative log-likelihood
    ]
)


def intervals(columns: Floats) -> dict[str, Interval | None]:
    """Return the intervals of loss, perplexity and bits per byte, given the documents' nats, tokens and bytes."""
    loss = ratio_interval(columns[:, 0], columns[:, 1])
    perplexity = loss and (significant(math.exp(loss[0])), significant(math.exp(loss[1])))
    return {"loss": loss, "perplexity": perplexity, "bits_per_byte": interval(columns)}


def interval(columns: Floats) -> Interval | None:
    """Return the interval of bits per byte."""
    return ratio_interval(columns[:, 0], math.log(2) * columns[:, 2])


def write_document_losses(scored: Iterable[ScoredSet]) -> None:
    """Write the loss of each document. The documents of a set are in the same order for each model."""
    tables = []
    for one in scored:
        frame = one.held_out.facts.assign(set=one.held_out.name, model=one.model.name, tokens=one.scores.tokens)
        frame["nats"] = [significant(value) for value in one.scores.nats.tolist()]
        tables.append(pa.Table.from_pandas(frame, DOCUMENT_LOSS, preserve_index=False).replace_schema_metadata())
    DOCUMENT_LOSSES.parent.mkdir(parents=True, exist_ok=True)
    write_table(DOCUMENT_LOSSES, pa.concat_tables(tables).combine_chunks())


def evaluation(measured: Mapping[str, HeldOutMetrics], receipt: EvaluationReceipt) -> Evaluation:
    """The report: the metrics of the validation split, and those of each further set."""
    further = {name: metrics for name, metrics in measured.items() if name != VALIDATION}
    return Evaluation(**dict(measured[VALIDATION]), sets=further, receipt=receipt)


def held_out_metrics(scores: Scores, lost_share: float, baselines: Mapping[str, Scores]) -> HeldOutMetrics:
    """Sum up a set's losses, with intervals over its documents."""
    columns = scores.columns
    by_source = of_largest_sources(rows_by_name(columns, scores.sources))
    by_length = rows_by_name(columns, scores.lengths)
    return HeldOutMetrics(
        **metrics(columns),
        lost_share=lost_share,
        documents=len(columns),
        tokens=int(scores.tokens.sum()),
        bytes=int(scores.bytes.sum()),
        bits_per_byte_per_source={name: bits_per_byte_of(part) for name, part in by_source.items()},
        bits_per_byte_per_length={name: bits_per_byte_of(part) for name, part in by_length.items()},
        interval_95=Intervals(
            **intervals(columns),
            bits_per_byte_per_source={name: interval(part) for name, part in by_source.items()},
            bits_per_byte_per_length={name: interval(part) for name, part in by_length.items()},
        ),
        compared={name: compare(scores, baseline) for name, baseline in baselines.items()},
    )


def compare(ours: Scores, theirs: Scores) -> BaselineComparison:
    """The difference in bits per byte over the same documents, with the interval of the paired differences."""
    difference, bounds = mean_difference(ours.nats, theirs.nats, ours.bytes)
    return BaselineComparison(
        bits_per_byte=bits_per_byte_of(theirs.columns), difference=difference, difference_interval_95=bounds
    )


def rows_by_name(columns: Floats, names: Sequence[str]) -> dict[str, Floats]:
    """The rows of each name, in the order of the names."""
    unique, of_row = np.unique(np.asarray(names), return_inverse=True)
    order = np.argsort(of_row, kind="stable")
    parts = np.split(columns[order], np.flatnonzero(np.diff(of_row[order])) + 1)
    return dict(zip(unique.tolist(), parts, strict=True))


def of_largest_sources(values: Mapping[str, Floats]) -> dict[str, Floats]:
    """Those of the `MAX_SOURCES` sources with most bytes of text: the report does not grow with their number."""
    largest = sorted(values.items(), key=lambda item: (-item[1][:, 2].sum(), item[0]))
    return dict(largest[:MAX_SOURCES])


def metrics(columns: Floats) -> dict[str, Any]:
    """Loss, perplexity and bits per byte of all documents together, rounded, given their nats, tokens and bytes."""
    nats, tokens, text_bytes = columns.sum(axis=0)
    values = {
        "loss": nats / tokens,
        "perplexity": np.exp(nats / tokens),
        "bits_per_byte": nats / (math.log(2) * text_bytes),
    }
    return {name: significant(float(value)) for name, value in values.items()}


def bits_per_byte_of(columns: Floats) -> float:
    """Bits per byte of all documents together, rounded."""
    value: float = metrics(columns)["bits_per_byte"]
    return value


def lost_text(scored: Iterable[ScoredSet]) -> list[str]:
    """A sentence for each set whose text a model's tokenizer cannot keep."""
    return [
        f"{one.lost_share:.1%} of the documents of {one.held_out.name} change when encoded and decoded: the "
        f"tokenizer of {one.model.name} loses text, which costs no bits, so its bits per byte are too low."
        for one in scored
        if one.lost_share
    ]


def trained_on(further: Sequence[HeldOutSet]) -> list[str]:
    """A sentence for each set of `evaluate.sets` with documents that are in the training data, byte for byte."""
    asked = {name for one in further for name in one.facts["id"]}
    shards = shard_paths(CLEAN / TRAIN) if asked else []
    known = {name for shard in shards for name in read_shard(shard, ["id"])["id"].to_pylist() if name in asked}
    counts = {one.name: (int(one.facts["id"].isin(known).sum()), len(one.facts)) for one in further}
    return [
        f"{count:,} of {total:,} documents of {name} are in the training data."
        for name, (count, total) in counts.items()
        if count
    ]


def evaluation_receipt(
    scored: Sequence[ScoredSet], models: Sequence[ScoredModel], notes: Sequence[str]
) -> EvaluationReceipt:
    """The receipt of each set as the trained model scored it, and of all models, the trained one first.

    `notes` are said with the convention.
    """
    sets = {
        one.held_out.name: SetReceipt(
            path=one.held_out.path.as_posix(),
            documents_sha256=one.held_out.sha256,
            documents_per_source=dict(Counter(one.scores.sources).most_common(MAX_SOURCES)),
            documents_per_length=dict(Counter(one.scores.lengths)),
        )
        for one in scored
    }
    receipts = {
        model.name: ModelReceipt(
            weights_sha256=weights_sha256(model.folder),
            revision=model.revision,
            context_length=model.sizes.context_length,
            stride=model.sizes.stride,
        )
        for model in models
    }
    return EvaluationReceipt(
        convention=" ".join([convention(models[0]), *notes]),
        sets=sets,
        models=receipts,
        versions=releases(),
        bootstrap_resamples=RESAMPLES,
        bootstrap_seed=SEED,
    )


def convention(model: ScoredModel) -> str:
    """How the metrics were computed, in prose."""
    return (
        "Every token of a held-out set is scored once. Each document is scored on its own, after an "
        "end-of-sequence id (a baseline after its beginning-of-sequence id, if it has one), and the id that closes "
        "it is scored too. "
        f"Windows of {model.sizes.context_length} tokens advance by {model.sizes.stride}. "
        "Loss is nats per token over all tokens, perplexity its exponential, bits per byte the same sum over the UTF-8 "
        f"bytes of the text; float32. "
        f"Intervals: 95 % over documents, by percentile bootstrap ({RESAMPLES} draws), up to {FEW} documents by "
        f"Student's t and the jackknife, of fewer than {MIN_DOCUMENTS} none. "
        "lm-eval's bits per byte differ slightly: its windows advance "
        "by the whole context, so that tokens have less context on average (only the last window of a document reaches "
        "back over tokens already scored, to be full), and it does not score the closing id."
    )
