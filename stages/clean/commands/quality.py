"""Train the classifier of `clean.filters.quality` on labelled documents: `parrotflow data quality good/ bad/`.

    parrotflow data quality labelled.jsonl --output quality.npz

Either two folders with a document a file, or JSON lines with `text` and `good` (true or false). A fifth of them, chosen
by their content, is held out to say how well it does; then it is trained on all. The same documents give the same file.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel

from stages.clean.classifier import Labelled, area_under_curve, train
from stages.formats.documents import document_id
from stages.formats.reports import read_rows
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import UserError, first_line, run_stage

COMMAND = "data quality"
"""Under `parrotflow`."""

HELD_OUT = 5
"""One document in this many."""

FEWEST = 10
"""Documents of each kind from which something can be learnt."""


def main() -> None:
    """Read, train, say how well it does, and write the file."""
    parser = argparse.ArgumentParser(prog="parrotflow data quality", description=__doc__.partition(":")[0] + ".")
    parser.add_argument("labelled", nargs="+", type=Path, help="a folder of good and one of bad documents, or a .jsonl")
    parser.add_argument("--output", type=Path, default=Path("quality.npz"), help="what to write (default: quality.npz)")
    arguments = parser.parse_args()
    documents = read_labelled(arguments.labelled)
    counts = [sum(good is kind for _, good in documents) for kind in (True, False)]
    if min(counts) < FEWEST:
        raise UserError(f"{counts[0]} good and {counts[1]} bad documents: label at least {FEWEST} of each")
    print(f"training on {counts[0]:,} good and {counts[1]:,} bad documents ...", flush=True)
    print(held_out_report(documents))
    atomic_write(arguments.output, train(documents).content())
    name = arguments.output.as_posix()
    print(
        f"wrote {name}: in params.yaml set clean.filters.quality: {{model: {json.dumps(name)}, minimum: null}}, in "
        f"dvc.yaml add {name} to the deps of clean; what a minimum would drop says\n"
        "  parrotflow data whatif filters.quality.minimum=0.5"
    )


def read_labelled(paths: Sequence[Path]) -> Labelled:
    """The documents, each content once, in an order that depends on their contents alone. Raises UserError for what
    cannot be read, and for a content that is both good and bad."""
    if len(paths) == 2:
        found = [(text, good) for folder, good in zip(paths, (True, False), strict=True) for text in _texts(folder)]
    elif len(paths) == 1:
        rows = read_rows(paths[0], LabelledRow, 'lines are like {"text": "...", "good": true}')
        found = [(row.text, row.good) for row in rows]
    else:
        raise UserError("give a folder of good and one of bad documents, or one .jsonl file")
    labels: dict[str, bool] = {}
    for text, good in found:
        if labels.setdefault(text, good) != good:
            raise UserError(f"a document is labelled good and bad: {text[:60]!r}")
    return sorted(labels.items(), key=lambda document: document_id(document[0]))


class LabelledRow(BaseModel, strict=True):
    """A line of a file of labelled documents."""

    text: str
    good: bool


def _texts(folder: Path) -> Iterator[str]:
    files = [path for path in sorted(folder.rglob("[!.]*")) if path.is_file()]
    if not files:
        raise UserError(f"{folder}: no folder with documents")
    for file in files:
        try:
            yield file.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise UserError(f"{file} cannot be read ({first_line(error)})") from None


def held_out_report(documents: Labelled) -> str:
    """How a classifier of four fifths of the documents does on the others, in words."""
    rest: list[tuple[str, bool]] = []
    held_out: list[tuple[str, bool]] = []
    for text, good in documents:
        (held_out if int(document_id(text)[:8], 16) % HELD_OUT == 0 else rest).append((text, good))
    labels = [good for _, good in held_out]
    if len(set(labels)) < 2:
        return "too few documents to hold some out: how well it does is not known"
    classifier = train(rest)
    scores = [classifier.score(text) for text, _ in held_out]
    right = sum((score >= 0.5) == good for score, good in zip(scores, labels, strict=True))
    return (
        f"held out {len(held_out):,} documents: {right / len(held_out):.1%} are right at 0.5; a good one scores above "
        f"a bad one in {area_under_curve(scores, labels):.1%} of all pairs"
    )


if __name__ == "__main__":
    run_stage(main)
