"""Whether the data can give what `train.mixture` asks: `python -m stages.train.commands.mixture`.

What the training says and refuses when it starts, before other stages are run in vain. Only for data that is there and
stays: where `tokenize` is still to run, nothing is known of what it will give.
"""

import os
from collections.abc import Iterator

from stages.formats.splits import TRAIN
from stages.formats.tokens import STORE_MANIFEST, TOKENS, TokenStore
from stages.runtime.entry import STAGES_TO_DO, run_stage
from stages.runtime.section import read_section
from stages.train.data.order import open_order
from stages.train.data.shares import check_repetition, describe
from stages.train.params import TrainParams

MAKES_TOKENS = "tokenize"
"""The stage."""


def main() -> None:
    """Print a line for each source."""
    for line in lines(read_section("train", TrainParams)):
        print(line)


def lines(params: TrainParams) -> Iterator[str]:
    """What the mixture comes to, as training says it; none without one.

    Raises UserError where a source is missing, or would be read too often.
    """
    if params.mixture is None:
        return
    if MAKES_TOKENS in os.environ.get(STAGES_TO_DO, "").split() or not (TOKENS / TRAIN / STORE_MANIFEST).is_file():
        yield f"mixture: not known before `{MAKES_TOKENS}` has run"
        return
    order = open_order(TokenStore(TOKENS / TRAIN), params)
    check_repetition(order)
    yield from describe(order)


if __name__ == "__main__":
    run_stage(main)
