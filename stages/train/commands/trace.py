"""From a training step back to the documents that it trained on.

    parrotflow data trace --step 120 [--row 3] [--of 9f3c01ab] [--tokens FOLDER]

It answers for the run that made `model/`, whose seed and batch size are recorded in `model/training.json`:
the order of the data follows from these. Without a model it answers for params.yaml. `--of` names a published revision
instead: its first digits, or its folder. The record names the tokens by their hash, and other tokens are refused.
Under a mixture it ends with what each source gave to the step, and to the run until then.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stages.formats.model_folder import MODEL, TRAINING_RUN
from stages.formats.reports import read_json
from stages.formats.revision.provenance import MAIN, PROVENANCE, REVISIONS, Provenance
from stages.formats.splits import TRAIN
from stages.formats.tokens import STORE_MANIFEST, TOKENS, TokenStore
from stages.runtime.atomic import file_sha256
from stages.runtime.entry import UserError, run_stage, visible
from stages.runtime.section import read_params_file, read_section
from stages.train.data.batches import DataOrder
from stages.train.data.order import RowOrder, open_order, shares_in
from stages.train.params import TrainParams

COMMAND = "data trace"
"""Under `parrotflow`."""

TRAINING_TOKENS = TOKENS / TRAIN


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
    parser.add_argument("--of", metavar="REVISION", help="a published revision, or a model's folder; default: model/")
    parser.add_argument("--tokens", type=Path, default=TRAINING_TOKENS, metavar="FOLDER", help="default: %(default)s")
    arguments = parser.parse_args()
    model = revision_folder(arguments.of) if arguments.of else MODEL
    params, store = trained_order(model, arguments.tokens), TokenStore(arguments.tokens)
    check(arguments.step, arguments.row, params)
    order = open_order(store, params)
    for origin in origins(store, order, arguments.step):
        if arguments.row in (None, origin.row):
            of = f" ({origin.license})" if origin.license else ""
            where = f"{origin.source}:{origin.path}{of}"
            print(f"row {origin.row:>3}  {visible(where)}  tokens {origin.first}..{origin.stop}")
    for line in shares(order, arguments.step):
        print(visible(line))


def revision_folder(given: str) -> Path:
    """The folder of a published revision: `given` is it, or the first digits of its name. Raises UserError."""
    if (Path(given) / TRAINING_RUN).is_file():
        return Path(given)
    published = Path(read_params_file().get("publish", {}).get("folder", "published"))
    names = f"*/{MAIN}" if given == MAIN else f"*/{REVISIONS}/{given}*"
    found = [path for path in sorted(published.glob(names)) if (path / TRAINING_RUN).is_file()]
    if len(found) == 1:
        return found[0]
    known = found or sorted(published.glob(f"*/{REVISIONS}/*/{TRAINING_RUN}"))
    listed = ", ".join(str(path.parent if path.name == TRAINING_RUN else path) for path in known) or "none"
    raise UserError(
        f"--of {given}: {'more than one revision' if found else 'no revision, and no folder with ' + TRAINING_RUN}; "
        f"in {published} there are: {listed}"
    )


def trained_order(model: Path = MODEL, tokens: Path = TRAINING_TOKENS) -> DataOrder:
    """The order of the run that made `model`; of params.yaml where there is no `model/` of this project.

    Raises UserError where `tokens` are not those that it was trained on, or a revision's record is damaged.
    """
    recorded, provenance = model / TRAINING_RUN, Provenance.find(model / PROVENANCE)
    if not recorded.exists():
        params = read_section("train", TrainParams)
        return DataOrder.model_validate(params.model_dump(include=set(DataOrder.model_fields)))
    if provenance and provenance.files.get(TRAINING_RUN) != file_sha256(recorded):
        raise UserError(f"{recorded}: not the file that was published ({PROVENANCE}); fetch the revision again")
    values, manifest = read_json(recorded), tokens / STORE_MANIFEST
    if not manifest.is_file() or values["tokens_sha256"] != file_sha256(manifest):
        commit = f"`git checkout {provenance.git.commit}`, then " if provenance else ""
        raise UserError(
            f"{tokens}: {'not' if manifest.is_file() else 'does not exist, so not'} the tokens that {model}/ was "
            f"trained on (their {STORE_MANIFEST} has the sha256 {values['tokens_sha256']}); {commit}"
            "`dvc checkout data/tokens` brings back those of a commit if the cache has them, "
            "`dvc repro tokenize` computes them; --tokens names "
            "another folder"
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
