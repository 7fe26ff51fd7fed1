"""The report of metrics with their intervals, and the receipt of what they were computed from."""

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
        ("tokens", pa.int64()),  # of the model's tokenizer, including the closing id
        ("nats", pa.float64()),  # negative log-likelihood
    ]
)


def intervals(columns: Floats) -> dict[str, Interval | None]:
    """The intervals of loss, perplexity and bits per byte; columns: nats, tokens and bytes, (documents, 3)."""
    loss = ratio_interval(columns[:, 0], columns[:, 1])
    perplexity = loss and (significant(math.exp(loss[0])), significant(math.exp(loss[1])))
    return {"loss": loss, "perplexity": perplexity, "bits_per_byte": interval(columns)}


def interval(columns: Floats) -> Interval | None:
    """The interval of bits per byte."""
    return ratio_interval(columns[:, 0], math.log(2) * columns[:, 2])


def write_document_losses(scored: Iterable[ScoredSet]) -> None:
    """Write the loss of each document; a set's documents are in the same order for each model."""
    tables = []
    for part in scored:
        frame = part.held_out.facts.assign(set=part.held_out.name, model=part.model.name, tokens=part.scores.tokens)
        frame["nats"] = [significant(value) for value in part.scores.nats.tolist()]
        tables.append(pa.Table.from_pandas(frame, DOCUMENT_LOSS, preserve_index=False).replace_schema_metadata())
    DOCUMENT_LOSSES.parent.mkdir(parents=True, exist_ok=True)
    write_table(DOCUMENT_LOSSES, pa.concat_tables(tables).combine_chunks())


def evaluation(measured: Mapping[str, HeldOutMetrics], receipt: EvaluationReceipt) -> Evaluation:
    """The report of the validation split and the further sets."""
    further = {name: metrics for name, metrics in measured.items() if name != VALIDATION}
    return Evaluation(**dict(measured[VALIDATION]), sets=further, receipt=receipt)


def held_out_metrics(scores: Scores, lost_share: float, baselines: Mapping[str, Scores]) -> HeldOutMetrics:
    """The metrics of a set, with intervals over its documents."""
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
    """The difference in bits per byte on the same documents, with the interval of the paired differences."""
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
    """Keep the `MAX_SOURCES` sources with the most bytes, to limit the report's size."""
    largest = sorted(values.items(), key=lambda item: (-item[1][:, 2].sum(), item[0]))
    return dict(largest[:MAX_SOURCES])


def metrics(columns: Floats) -> dict[str, Any]:
    """Rounded loss, perplexity and bits per byte of all documents; columns: nats, tokens and bytes, (documents, 3)."""
    nats, tokens, text_bytes = columns.sum(axis=0)
    values = {
        "loss": nats / tokens,
        "perplexity": np.exp(nats / tokens),
        "bits_per_byte": nats / (math.log(2) * text_bytes),
    }
    return {name: significant(float(value)) for name, value in values.items()}


def bits_per_byte_of(columns: Floats) -> float:
    """Rounded bits per byte of all documents together."""
    value: float = metrics(columns)["bits_per_byte"]
    return value


def lost_text(scored: Iterable[ScoredSet]) -> list[str]:
    """A sentence for each set and model whose tokenizer loses text."""
    return [
        f"{part.lost_share:.1%} of the documents of {part.held_out.name} change when encoded and decoded: the "
        f"tokenizer of {part.model.name} loses text, which costs no bits, so its bits per byte are too low."
        for part in scored
        if part.lost_share
    ]


def trained_on(further: Sequence[HeldOutSet]) -> list[str]:
    """A sentence for each set with documents that are in the training data, byte for byte."""
    ids = {text for held_out in further for text in held_out.facts["id"]}
    shards = shard_paths(CLEAN / TRAIN) if ids else []
    known = {text for shard in shards for text in read_shard(shard, ["id"])["id"].to_pylist() if text in ids}
    counts = {held_out.name: int(held_out.facts["id"].isin(known).sum()) for held_out in further}
    return [
        f"{counts[held_out.name]:,} of {len(held_out.facts):,} documents of {held_out.name} are in the training data."
        for held_out in further
        if counts[held_out.name]
    ]


def evaluation_receipt(
    scored: Sequence[ScoredSet], models: Sequence[ScoredModel], notes: Sequence[str]
) -> EvaluationReceipt:
    """The receipt, given the sets as the trained model scored them, and all models, the trained one first.

    `notes` are appended to the convention.
    """
    sets = {
        part.held_out.name: SetReceipt(
            path=part.held_out.path.as_posix(),
            documents_sha256=part.held_out.sha256,
            documents_per_source=dict(Counter(part.scores.sources).most_common(MAX_SOURCES)),
            documents_per_length=dict(Counter(part.scores.lengths)),
        )
        for part in scored
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
