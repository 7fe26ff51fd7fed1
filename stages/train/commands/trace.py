"""From a training step back to the documents that it trained on.

    python -m stages.train.commands.trace --step 120 [--row 3]

The order of the data is a pure function of (seed, step), so nothing has to be recorded for this.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stages.formats.tokens import TokenStore
from stages.runtime.entry import UserError, run_stage
from stages.runtime.section import read_section
from stages.train.data.batches import rows_of_step
from stages.train.data.packing import build_packing
from stages.train.params import TrainParams

COMMAND = "data trace"
"""Under `parrotflow`."""

TOKENS = Path("data/tokens/train")


@dataclass(frozen=True, slots=True)
class Origin:
    """A stretch of a document in a row of a global batch."""

    row: int
    """Place in the global batch."""
    source: str
    path: str
    license: str
    first: int
    """First token of the stretch, within its document."""
    stop: int
    """Behind its last one."""


def main() -> None:
    """Print a line for each stretch."""
    parser = argparse.ArgumentParser(prog="parrotflow data where", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--step", type=int, required=True, help="from 1 on, as the curves count")
    parser.add_argument("--row", type=int, help="a sequence of the global batch, from 0 on; all of them without")
    arguments = parser.parse_args()
    params, store = read_section("train", TrainParams), TokenStore(TOKENS)
    check(arguments.step, arguments.row, params)
    for origin in origins(store, params, arguments.step):
        if arguments.row in (None, origin.row):
            of = f" ({origin.license})" if origin.license else ""
            print(f"row {origin.row:>3}  {origin.source}:{origin.path}{of}  tokens {origin.first}..{origin.stop}")


def check(step: int, row: int | None, params: TrainParams) -> None:
    """Raise UserError where the run has no such step or row."""
    if not 1 <= step <= params.max_steps:
        raise UserError(f"--step {step}: the run has the steps 1 to {params.max_steps} (train.max_steps)")
    if row is not None and not 0 <= row < params.global_batch_size:
        raise UserError(
            f"--row {row}: a step has the rows 0 to {params.global_batch_size - 1} (train.global_batch_size)"
        )


def origins(store: TokenStore, params: TrainParams, step: int) -> Iterator[Origin]:
    """The stretches that step number `step` (from 1 on) trained on, in the order of the batch."""
    index = build_packing(store, params.sequence_length, params.packing)
    rows = rows_of_step(params.seed, step - 1, params.global_batch_size, index.rows)
    for place, row in enumerate(rows):
        for segment in index.segments(int(row)):
            start = segment.start
            while start < segment.start + segment.length:
                number = store.document_at(start)
                begin, length = int(store.document_starts[number]), int(store.document_lengths[number])
                stop = min(segment.start + segment.length, begin + length)
                info = store.document_info(number)
                yield Origin(place, info["source"], info["path"], info.get("license", ""), start - begin, stop - begin)
                start = stop


if __name__ == "__main__":
    run_stage(main)
