"""What `list` and `show` say of a revision, as far as its files say it: older versions recorded less."""

from collections.abc import Sequence
from datetime import datetime

from pydantic import BaseModel, ConfigDict, ValidationError

from stages.formats.reports import read_json
from stages.formats.revision.execution import Execution
from stages.formats.revision.layout import EVALUATION, EXECUTION, PROVENANCE, record_path, run_name
from stages.formats.revision.provenance import Provenance
from stages.publish.card.values import between
from stages.publish.inputs import TRAIN_REPORT
from stages.publish.registry.local import Folder

HEADING = ("", "revision", "published", "bits per byte", "95 % interval", "parameters", "size", "own", "run", "commit")


class PublishedIntervals(BaseModel):
    """The 95 % intervals of a published evaluation that are listed."""

    model_config = ConfigDict(extra="ignore")

    bits_per_byte: tuple[float, float] | None = None


class PublishedFigures(BaseModel):
    """What is listed of a published evaluation of any version."""

    model_config = ConfigDict(extra="ignore")

    bits_per_byte: float | None = None
    documents: int = 0
    interval_95: PublishedIntervals = PublishedIntervals()


class Listed(BaseModel):
    """A line of `list`."""

    revision: str
    main: bool
    """Whether main leads to it."""
    published: datetime
    bits_per_byte: float | None
    """Of the held-out split."""
    interval_95: tuple[float, float] | None
    documents: int
    """Of the held-out split; 0 where that is not known."""
    parameters: int | None
    bytes: int
    """Of all its files; several revisions may share them."""
    bytes_of_its_own: int
    """That removing it makes free."""
    run: str | None
    commit: str | None
    dirty: bool | None
    """Whether files differed from the commit; None where no commit is known."""


class Shown(Listed):
    """What `show` says."""

    location: str
    files: dict[str, int]
    """File -> bytes."""
    steps: dict[int, str]
    """Exported step of the run -> its folder."""
    origin: str | None
    """The remote repository of the commit."""
    moves: list[str]
    """When main began to lead to it, and why."""


def listed(registry: Folder, name: str) -> Listed:
    """A revision in a line."""
    folder = registry.folder(name)
    provenance, execution = Provenance.find(folder / PROVENANCE), Execution.find(folder / EXECUTION)
    figures, git = figures_of(registry, name), provenance.git if provenance else None
    training = folder / record_path(TRAIN_REPORT)
    return Listed(
        revision=name,
        main=name == registry.main(),
        published=registry.published(name),
        bits_per_byte=figures.bits_per_byte,
        interval_95=figures.interval_95.bits_per_byte,
        documents=figures.documents,
        parameters=read_json(training).get("parameters") if training.is_file() else None,
        bytes=sum(registry.sizes(name).values()),
        bytes_of_its_own=registry.freed_by_removing(name),
        run=run_name(execution.fingerprint) if execution else None,
        commit=git.commit if git else None,
        dirty=git.dirty if git else None,
    )


def shown(registry: Folder, name: str) -> Shown:
    """A revision in full; its parameters, libraries and hardware are in its card and below record/."""
    provenance = Provenance.find(registry.folder(name) / PROVENANCE)
    return Shown(
        **dict(listed(registry, name)),
        location=registry.folder(name).as_posix(),
        files=dict(registry.sizes(name)),
        steps={step: path.as_posix() for step, path in registry.steps(name).items()},
        origin=provenance.git.origin if provenance and provenance.git else None,
        moves=[f"{move.at:%Y-%m-%d %H:%M} {move.why}" for move in registry.moves() if move.to == name],
    )


def figures_of(registry: Folder, name: str) -> PublishedFigures:
    """The figures of its evaluation; without values where there is none that can be read."""
    try:
        return PublishedFigures.model_validate_json((registry.folder(name) / EVALUATION).read_bytes())
    except (OSError, ValidationError):
        return PublishedFigures()


def printed_list(rows: Sequence[Listed]) -> str:
    """A line for each revision; `*` is the one that main leads to."""
    lines = [("*" if row.main else "", *cells(row)) for row in rows]
    return aligned([HEADING, *lines]) if lines else "nothing is published"


def printed_revision(found: Shown) -> str:
    """Everything about a revision, a line for each fact."""
    rows = [
        *zip(HEADING[1:], cells(found), strict=True),
        ("in", found.location),
        ("from", found.origin or "no remote repository"),
        *(("main", move) for move in found.moves),
        *((f"step {step}", where) for step, where in found.steps.items()),
        *((path, size(count)) for path, count in found.files.items()),
    ]
    return aligned(rows)


def cells(row: Listed) -> tuple[str, ...]:
    """A revision's cells below the heading, without the first."""
    return (
        row.revision,
        f"{row.published:%Y-%m-%d %H:%M}",
        "" if row.bits_per_byte is None else f"{row.bits_per_byte:g}",
        between(row.interval_95, row.documents),
        "" if row.parameters is None else f"{row.parameters:,}",
        size(row.bytes),
        size(row.bytes_of_its_own),
        row.run or "",
        f"{row.commit[:12]}{' dirty' if row.dirty else ''}" if row.commit else "",
    )


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def size(count: int) -> str:
    """Bytes in a readable unit."""
    for unit, bytes_ in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= bytes_:
            return f"{count / bytes_:.1f} {unit}"
    return f"{count} bytes"
