"""From a training step back to the documents that it trained on.

    parrotflow data trace --step 120 [--row 3]

It answers for the run that made `model/`, whose seed and batch size are recorded in `model/training.json`: the order of
the data follows from these. Without a model it answers for params.yaml. The record names the tokens by their hash, and
other tokens are refused. Under a mixture it ends with what each source gave to the step, and to the run until then.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from stages.formats.model_folder import MODEL, TRAINING_RUN
from stages.formats.reports import read_json
from stages.formats.tokens import STORE_MANIFEST, TOKENS, TRAIN, TokenStore
from stages.runtime.atomic import file_sha256
from stages.runtime.entry import UserError, visible
from stages.runtime.section import read_section
from stages.runtime.stage import run_stage
from stages.train.data.order import DataOrder, RowOrder, open_order, shares_in
from stages.train.params import TrainParams

COMMAND = "data trace"
"""Under `parrotflow`."""


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
    """One after its last."""


def main() -> None:
    """Print a line for each span."""
    parser = argparse.ArgumentParser(prog="parrotflow data trace", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--step", type=int, required=True, help="from 1, as in the curves")
    parser.add_argument("--row", type=int, help="a sequence of the global batch, from 0 on; default: all")
    arguments = parser.parse_args()
    params, store = trained_order(), TokenStore(TOKENS / TRAIN)
    check(arguments.step, arguments.row, params)
    order = open_order(store, params)
    for origin in origins(store, order, arguments.step):
        if arguments.row in (None, origin.row):
            of = f" ({origin.license})" if origin.license else ""
            where = f"{origin.source}:{origin.path}{of}"
            print(f"row {origin.row:>3}  {visible(where)}  tokens {origin.first}..{origin.stop}")
    for line in shares(order, arguments.step):
        print(visible(line))


def trained_order() -> DataOrder:
    """The order of the run that made `model/`; of params.yaml if there is no model.

    Raises UserError if the tokens are not those that it was trained on.
    """
    recorded, manifest = MODEL / TRAINING_RUN, TOKENS / TRAIN / STORE_MANIFEST
    if not recorded.exists():
        params = read_section("train", TrainParams)
        return DataOrder.model_validate(params.model_dump(include=set(DataOrder.model_fields)))
    values = read_json(recorded)
    if not manifest.is_file() or values["tokens_sha256"] != file_sha256(manifest):
        raise UserError(
            f"{TOKENS / TRAIN}: not the tokens that {MODEL}/ was trained on; check out the commit that trained it, "
            "then `dvc checkout` brings both back if the cache has them"
        )
    return DataOrder.model_validate({name: values[name] for name in DataOrder.model_fields if name in values})


def check(step: int, row: int | None, params: DataOrder) -> None:
    """Raise UserError where the run has no such step or row."""
    if not 1 <= step <= params.max_steps:
        raise UserError(f"--step {step}: the run has the steps 1 to {params.max_steps} (train.max_steps)")
    size = params.global_batch_size
    if row is not None and not 0 <= row < size:
        raise UserError(f"--row {row}: step {step} has the rows 0 to {size - 1} (train.global_batch_size)")


def origins(store: TokenStore, order: RowOrder, step: int) -> Iterator[Origin]:
    """The spans that step number `step` (from 1) trained on, in the order of the batch."""
    for number, row in enumerate(order.rows_of_step(step - 1)):
        for segment in order.index.segments(int(row)):
            start = segment.start
            while start < segment.start + segment.length:
                document = store.document_at(start)
                begin, length = int(store.document_starts[document]), int(store.document_lengths[document])
                stop = min(segment.start + segment.length, begin + length)
                info = store.document_info(document)
                yield Origin(number, info["source"], info["path"], info.get("license", ""), start - begin, stop - begin)
                start = stop


def shares(order: RowOrder, step: int) -> Iterator[str]:
    """For each source of a mixture its share of step number `step` (from 1), and of all steps up to it."""
    if order.mixed is None:
        return
    own, until = (shares_in(order, order.mixed, steps) for steps in (range(step - 1, step), range(step)))
    for name, of_run in until.items():
        yield (
            f"{name}: {own[name].share:.2%} of the tokens of step {step} (asked {own[name].asked_share:.2%}); "
            f"{of_run.share:.2%} of those of the steps 1 to {step} (asked {of_run.asked_share:.2%}), "
            f"{of_run.tokens:,} tokens, {of_run.epochs:.2f} epochs"
        )


if __name__ == "__main__":
    run_stage(main)
