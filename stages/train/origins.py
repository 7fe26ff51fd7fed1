"""Which documents and sources a run trains on."""

from collections.abc import Iterator
from dataclasses import dataclass

from stages.formats.tokens import TokenStore
from stages.formats.training import SourceShare
from stages.train.compute.data.order import AnyOrder, RowOrder


def shares(order: AnyOrder) -> dict[str, SourceShare]:
    """The tokens of each source that the whole run trains on; empty without a mixture."""
    if isinstance(order, RowOrder):
        return {}
    draws = order.params.max_steps * order.params.global_batch_size
    return {
        source.name: SourceShare(
            tokens=rows * order.params.sequence_length,
            share=round(rows / draws, 6),
            epochs=round(rows / source.rows, 4),
        )
        for source, rows in zip(order.sources, order.draws.counts(draws), strict=True)
    }


def describe_order(order: AnyOrder, store: TokenStore) -> Iterator[str]:
    """Yield one line per source of a mixture, and one for documents left out; nothing without a mixture."""
    if isinstance(order, RowOrder):
        return
    for source, of_run in zip(order.sources, shares(order).values(), strict=True):
        yield (
            f"mixture: {source.name}: {of_run.share:.2%} of the tokens, {of_run.epochs:.2f} epochs of "
            f"{source.rows * order.params.sequence_length:,} tokens in {source.documents:,} documents"
        )
    if left := len(store.document_lengths) - sum(source.documents for source in order.sources):
        tokens = store.manifest.tokens - sum(source.stored_tokens for source in order.sources)
        yield f"mixture: {left:,} documents ({tokens:,} tokens) are left out: they have no weight"


@dataclass(frozen=True, slots=True)
class Origin:
    """A span of a document in a row of a global batch."""

    row: int
    """Index in the global batch."""
    source: str
    path: str
    license: str
    first: int
    """First token of the span, within its document."""
    stop: int
    """The token after the span."""


def origins(store: TokenStore, order: AnyOrder, step: int) -> Iterator[Origin]:
    """Yield the spans that `step` (from 1) trained on, in the order of the batch."""
    spans = [
        (number, start, start + length)
        for number, row in enumerate(order.rows_of_step(step - 1))
        for start, length in order.index.spans(int(row))
    ]
    documents = [(number, *part) for number, start, stop in spans for part in store.documents_within(start, stop)]
    # Sorted, so that each file of documents is read once.
    infos = {document: store.document_info(document) for document in sorted({of for _, of, _, _ in documents})}
    for number, document, first, stop in documents:
        info = infos[document]
        yield Origin(number, info["source"], info["path"], info.get("license", ""), first, stop)
