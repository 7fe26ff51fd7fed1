"""The model card, its picture and the licences of the data, rendered again by the revision's code and compared.

They are rendered from what is recorded (reports, parameters, execution) and was compared with the rebuilt files before,
and from the rebuilt data and samples, which a revision does not hold.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from flows.reproduce.commands import run_quietly
from flows.reproduce.compare import ComparedStage, Difference, keys, of_pairs, same_weights
from flows.reproduce.revision import RecordedRevision
from stages.formats.model_folder import MODEL
from stages.formats.reports import REPORTS
from stages.formats.revision.execution import TRAIN_EXECUTION, TRAIN_SPEED
from stages.formats.revision.provenance import (
    CARD,
    CARD_COMMAND,
    CURVES,
    EXECUTION,
    INPUTS,
    RECORDED_CODE,
    RECORDED_LOCK,
    RECORDED_PARAMS,
    SPEED,
    InputListing,
)
from stages.runtime.stage_code import FOLDER

OF_THE_MODEL = {"Samples"}
"""Sections of the card that other weights have otherwise."""

SHOWN = 100
"""Characters of a line."""


def compared_card(
    revision: RecordedRevision, checkout: Path, python: Path, environment: Mapping[str, str]
) -> ComparedStage | str:
    """The comparison of a card that is rendered again; why there is none, in words."""
    if CARD not in revision.provenance.files:
        return "the revision has no card"
    if not (checkout / Path(*CARD_COMMAND.split("."))).with_suffix(".py").is_file():
        return "the revision's code cannot render its card without publishing"
    project = revision.work / "card"
    shutil.rmtree(project, ignore_errors=True)
    lay_out(revision, checkout, project)
    command = [str(python), "-m", CARD_COMMAND, str(project / "rendered")]
    done = run_quietly(command, project, {**environment, "PYTHONPATH": str(checkout)})
    if done.returncode:
        return f"it could not be rendered: {(done.stderr.strip() or f'exit code {done.returncode}').splitlines()[-1]}"
    rendered, same = project / "rendered", same_weights(revision, checkout)
    differences = [
        *card_differences(revision.folder / CARD, rendered / CARD, same_weights=same),
        *picture_differences(revision.folder / CURVES, rendered / CURVES),
        *source_differences(revision.inputs, InputListing.find(rendered / Path(INPUTS).name)),
    ]
    return ComparedStage("card", "different" if differences else "identical", [], differences)


def lay_out(revision: RecordedRevision, checkout: Path, project: Path) -> None:
    """Make the project that publish saw: links to the recorded files, and to rebuilt ones where nothing is recorded."""
    files = {project / file: revision.folder / path for path, file in revision.published.items()}
    for path in (RECORDED_PARAMS, RECORDED_LOCK):
        files |= {project / Path(path).name: revision.folder / path}
    code = [path for path in revision.provenance.files if path.startswith(f"{RECORDED_CODE}/")]
    files |= {project / FOLDER / Path(path).name: revision.folder / path for path in code}
    files |= {project / TRAIN_EXECUTION: revision.folder / EXECUTION, project / TRAIN_SPEED: revision.folder / SPEED}
    rebuilt = {path.relative_to(checkout): path for path in (checkout / REPORTS).rglob("*") if path.is_file()}
    for name in rebuilt.keys() - {TRAIN_EXECUTION, TRAIN_SPEED}:
        files.setdefault(project / name, rebuilt[name])
    for target, source in files.items():
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source)
    for step in (checkout / MODEL).glob("step-*"):  # the card names the exported steps
        (project / MODEL / step.name).mkdir(parents=True, exist_ok=True)
    (project / "data").symlink_to(checkout / "data")


def card_differences(published: Path, rendered: Path, *, same_weights: bool) -> Iterator[Difference]:
    """The first line that differs; of other weights the samples are others too, which is no contradiction."""
    ours, theirs = (sections(path.read_text(encoding="utf-8", errors="replace")) for path in (published, rendered))
    differing = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    if not differing:
        if published.read_bytes() != rendered.read_bytes():
            yield Difference("", "other sections", "than are rendered", file=CARD)
        return
    lines, others = ours.get(differing[0], []), theirs.get(differing[0], [])
    at = next((i for i, pair in enumerate(zip(lines, others, strict=False)) if len(set(pair)) > 1), None)
    number = min(len(lines), len(others)) if at is None else at
    recorded, found = (one[number][:SHOWN] if number < len(one) else "no line" for one in (lines, others))
    extent = f"{len(differing)} sections differ: {', '.join(differing)}" if len(differing) > 1 else ""
    explained = not same_weights and set(differing) <= OF_THE_MODEL
    weight: Literal["rounding", "content"] = "rounding" if explained else "content"
    yield Difference(differing[0], recorded, found, extent, weight, file=CARD)


def sections(card: str) -> dict[str, list[str]]:
    """Heading -> lines of a card. A heading within a block of code is none: what a model wrote may hold fences too."""
    found: dict[str, list[str]] = {}
    heading, fence = "head", ""
    for line in card.splitlines():
        if fence:
            fence = "" if line == fence else fence
        elif line.startswith("```"):
            fence = "`" * (len(line) - len(line.lstrip("`")))
        elif line.startswith("## "):
            heading = line.removeprefix("## ")
        found.setdefault(heading, []).append(line)
    return found


def picture_differences(published: Path, rendered: Path) -> Iterator[Difference]:
    """Whether the picture shows the recorded curves. Bytes may differ where a library packs the same picture anew."""
    if not published.is_file() and not rendered.is_file():
        return
    if not published.is_file() or not rendered.is_file():
        recorded, found = ("a picture" if path.is_file() else "none" for path in (published, rendered))
        yield Difference("", recorded, found, file=CURVES)
    elif published.read_bytes() != rendered.read_bytes() and not same_pixels(published, rendered):
        yield Difference("", "another picture", "that of the recorded curves", file=CURVES)


def same_pixels(one: Path, other: Path) -> bool:
    """Whether two PNGs show the same and hold nothing else; False where one is damaged."""
    from PIL import Image

    try:
        with Image.open(one, formats=["PNG"]) as left, Image.open(other, formats=["PNG"]) as right:
            same = (left.mode, left.size, left.tobytes()) == (right.mode, right.size, right.tobytes())
            return same and left.info == right.info
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return False


def source_differences(published: InputListing | None, found: InputListing | None) -> Iterator[Difference]:
    """The sources of the data: documents, bytes, hash and licences. Where the bytes are cannot be computed."""
    ours, theirs = (
        [source.model_dump(mode="json", exclude={"places"}) for source in listing.sources] if listing else None
        for listing in (published, found)
    )

    def shown(value: object) -> str:
        return json.dumps(value, ensure_ascii=False)[:SHOWN]

    pairs = [(key, shown(left), shown(right)) for key, left, right in keys(ours, theirs, "sources")]
    if difference := of_pairs(pairs, "values"):
        yield replace(difference, file=INPUTS)
