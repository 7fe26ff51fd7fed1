"""From a training step back to the documents that it trained on.

    parrotflow data trace --step 120 [--row 3]

It answers for the run that made `model/`, whose seed, batch size and packing are recorded in `model/training.json`:
the order of the data follows from these. Without a model it answers for params.yaml.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from stages.formats.model_folder import MODEL, TRAINING_RUN
from stages.formats.reports import read_json
from stages.formats.splits import TRAIN
from stages.formats.tokens import MANIFEST, TOKENS, TokenStore
from stages.runtime.entry import UserError, run_stage
from stages.runtime.hashes import file_sha256
from stages.runtime.section import read_section
from stages.train.data.batches import batch_size, rows_of_step
from stages.train.data.packing import open_packing
from stages.train.params import TrainParams

COMMAND = "data trace"
"""Under `parrotflow`."""

TRAINING_TOKENS = TOKENS / TRAIN


class DataOrder(BaseModel):
    """What the order of the data follows from; the fields are those of the `train` section."""

    seed: int
    max_steps: int
    global_batch_size: int
    batch_doublings: list[int] = []
    """Models of before there were any do not name them."""
    sequence_length: int
    packing: Literal["best_fit", "concatenate"]


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
    order, store = trained_order(), TokenStore(TRAINING_TOKENS)
    check(arguments.step, arguments.row, order)
    for origin in origins(store, order, arguments.step):
        if arguments.row in (None, origin.row):
            of = f" ({origin.license})" if origin.license else ""
            print(f"row {origin.row:>3}  {origin.source}:{origin.path}{of}  tokens {origin.first}..{origin.stop}")


def trained_order(model: Path = MODEL) -> DataOrder:
    """The order of the run that made `model`; of params.yaml where there is none.

    Raises UserError where the tokens are no longer those that it was trained on.
    """
    recorded = model / TRAINING_RUN
    if not recorded.exists():
        params = read_section("train", TrainParams)
        return DataOrder.model_validate(params.model_dump(include=set(DataOrder.model_fields)))
    values = read_json(recorded)
    if values["tokens_sha256"] != file_sha256(TRAINING_TOKENS / MANIFEST):
        raise UserError(
            f"{TRAINING_TOKENS}: not the tokens that {model}/ was trained on; "
            "`dvc checkout` brings back those of a commit"
        )
    return DataOrder.model_validate({name: values[name] for name in DataOrder.model_fields if name in values})


def check(step: int, row: int | None, params: DataOrder) -> None:
    """Raise UserError where the run has no such step or row."""
    if not 1 <= step <= params.max_steps:
        raise UserError(f"--step {step}: the run has the steps 1 to {params.max_steps} (train.max_steps)")
    size = batch_size(params, step - 1)
    if row is not None and not 0 <= row < size:
        raise UserError(
            f"--row {row}: step {step} has the rows 0 to {size - 1} (train.global_batch_size and batch_doublings)"
        )


def origins(store: TokenStore, params: DataOrder, step: int) -> Iterator[Origin]:
    """The spans that step number `step` (from 1) trained on, in the order of the batch."""
    index = open_packing(store, params.sequence_length, params.packing)
    rows = rows_of_step(params.seed, step - 1, params, index.rows)
    for number, row in enumerate(rows):
        for segment in index.segments(int(row)):
            start = segment.start
            while start < segment.start + segment.length:
                document = store.document_at(start)
                begin, length = int(store.document_starts[document]), int(store.document_lengths[document])
                stop = min(segment.start + segment.length, begin + length)
                info = store.document_info(document)
                yield Origin(number, info["source"], info["path"], info.get("license", ""), start - begin, stop - begin)
                start = stop


if __name__ == "__main__":
    run_stage(main)
