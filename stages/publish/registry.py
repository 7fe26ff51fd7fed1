"""The revisions in a folder, `published/NAME`, and what `parrotflow published` says of them, as far as their files do.

Those on the Hub are shown and managed by the Hub and its client. Older versions of parrotflow recorded less.
"""

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import BaseModel
from rich.filesize import decimal

from stages.formats.evaluation.report import PublishedEvaluation
from stages.formats.model_folder import MODEL
from stages.formats.reports import read_json
from stages.formats.revision.execution import Execution
from stages.formats.revision.lock import Fault
from stages.formats.revision.provenance import (
    EVALUATION,
    EXECUTION,
    MAIN,
    PROVENANCE,
    REVISIONS,
    RUNS,
    Provenance,
    is_shipped,
    record_path,
    run_name,
)
from stages.formats.revision.verify import verify_files
from stages.publish.card import between
from stages.publish.folder import main_of, read_moves
from stages.publish.inputs import TRAIN_REPORT
from stages.runtime.atomic import file_md5
from stages.runtime.entry import UserError

LEAST_DIGITS = 4
"""Of an abbreviated name, as in git."""

HEADING = ("", "revision", "published", "bits per byte", "95 % interval", "parameters", "size", "own", "run", "commit")


class Folder:
    """A folder with revisions of any version of parrotflow."""

    def __init__(self, path: Path) -> None:
        """Raises UserError where nothing is published in `path`."""
        self.path, self.location = path, path.as_posix()
        if not (path / REVISIONS).is_dir():
            raise UserError(f"{path}: nothing is published here; `parrotflow run publish` publishes")

    def names(self) -> list[str]:
        """By the time of their publication."""
        found = [path.name for path in (self.path / REVISIONS).glob("[!.]*") if path.is_dir()]
        return sorted(found, key=lambda name: (self.published(name), name))

    def full_name(self, given: str) -> str:
        """The revision that `given` means: its name, the first digits of it, or `main`. Raises UserError."""
        given = self.main_revision() if given == MAIN else given
        names = self.names()
        found = [name for name in names if name.startswith(given)]
        if given in names or (len(found) == 1 and len(given) >= LEAST_DIGITS):
            return given if given in names else found[0]
        if len(found) > 1:
            raise UserError(f"{given}: ambiguous in {self.location}: {', '.join(found)}; give more digits")
        hint = f" (give at least {LEAST_DIGITS} digits)" if found else ""
        raise UserError(f"{given}: no revision of {self.location}{hint}; there are: {', '.join(names) or 'none'}")

    def main(self) -> str | None:
        """Where the link leads."""
        return main_of(self.path)

    def main_revision(self) -> str:
        """The revision that `main` leads to. Raises UserError where there is none."""
        if (name := self.main()) is None:
            raise UserError(f"{self.location}: main leads to no revision; `parrotflow run publish` publishes one")
        return name

    def published(self, name: str) -> datetime:
        """When its last file was written, which is its provenance."""
        folder = self.folder(name)
        written = folder / PROVENANCE if (folder / PROVENANCE).exists() else folder
        return datetime.fromtimestamp(int(written.stat().st_mtime), UTC)

    def folder(self, name: str) -> Path:
        """The revision's folder."""
        return self.path / REVISIONS / name

    def steps(self, name: str) -> Mapping[int, Path]:
        """The folders of the exported steps of its run."""
        run = self.run(name)
        if run is None:
            return {}
        found = sorted((self.path / RUNS / run).glob("step-*"))
        return {int(path.name.removeprefix("step-")): path for path in found}

    def faults(self, name: str) -> list[Fault]:
        """What is wrong with a revision, with its name here, and with the exported steps of its run."""
        folder = self.folder(name)
        index = Provenance.find(folder / PROVENANCE)
        another = f"it is that of {index.revision}" if index and index.revision != name else ""
        misnamed = [Fault(PROVENANCE, "differs", another)] if another else []
        return [*verify_files(folder), *misnamed, *self.wrong_steps(name)]

    def wrong_steps(self, name: str) -> Iterator[Fault]:
        """Files of the exported steps that neither the revision's training nor another one of its run has made.

        The tokenizer's are those of the whole model.
        """
        run = self.run(name)
        indices = {other: Provenance.find(self.folder(other) / PROVENANCE) for other in self.names()}
        listings = {other: index.folders.get(MODEL.as_posix(), {}) for other, index in indices.items() if index}
        made = [listing for other, listing in listings.items() if listing and self.run(other) == run]
        if run is None or not made:
            return
        place = self.path / RUNS / run
        there = {file.relative_to(place).as_posix(): file for file in files_below(self.steps(name).values())}
        own = {path for path in listings.get(name, {}) if path.startswith("step-") and is_shipped(Path(path).name)}
        for path in sorted(own | there.keys()):
            known = {listing.get(path) or listing.get(Path(path).name) for listing in made} - {None}
            if path not in there:
                yield Fault(f"{RUNS}/{run}/{path}", "missing")
            elif file_md5(there[path]) not in known:
                yield Fault(f"{RUNS}/{run}/{path}", "differs" if known else "unlisted")

    def run(self, name: str) -> str | None:
        """The name of the run that a revision comes from; None where it is not recorded."""
        execution = Execution.find(self.folder(name) / EXECUTION)
        return run_name(execution.fingerprint) if execution else None

    def freed_by_removing(self, name: str) -> int:
        """The bytes on disk of the files that have no other name (hard link) elsewhere."""
        stats = [path.stat() for path in files_below(self.leaving(name))]
        names = Counter((stat.st_dev, stat.st_ino) for stat in stats)
        files = {(stat.st_dev, stat.st_ino): stat for stat in stats}
        return sum(stat.st_size for file, stat in files.items() if stat.st_nlink == names[file])

    def leaving(self, name: str) -> list[Path]:
        """The folders that go with a revision: its own, and its run's where no other revision is of that run."""
        run = self.run(name)
        others = {self.run(other) for other in self.names() if other != name}
        return [self.folder(name), *([self.path / RUNS / run] if run and run not in others else [])]

    def remove(self, name: str) -> None:
        """Rename, then delete: what a crash leaves has no revision's name, and the next removal deletes it."""
        self.clean()
        # Its own folder goes last: until then the same command finds the revision and continues.
        for folder in reversed(self.leaving(name)):
            if folder.is_dir():
                folder.rename(folder.with_name(f".{folder.name}.removed.partial"))
        self.clean()

    def clean(self) -> None:
        """Delete what was removed, and what a killed removal left."""
        for room in (REVISIONS, RUNS):
            for left in (self.path / room).glob(".*.removed.partial"):
                shutil.rmtree(left)


def files_below(folders: Iterable[Path]) -> Iterator[Path]:
    """Every file below these folders, in order."""
    return (path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file())


class TrainingTime(BaseModel, extra="ignore"):
    """How much of a training's time was useful. Not on the card, which is the same for the same training."""

    effective_training_time_ratio: float
    """Useful over total time."""
    total_seconds: float
    """From the first start to the end."""
    interruptions: int

    @property
    def text(self) -> str:
        """All of it, for a line."""
        count, total = self.interruptions, timedelta(seconds=round(self.total_seconds))
        share = f"{self.effective_training_time_ratio:.1%} of {total}"
        return f"{share}, {count or 'no'} interruption{'s' * (count != 1)}"


class Described(BaseModel):
    """What `list` and `show` say of a revision; its parameters, libraries and hardware are in its card and record/."""

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
    location: str
    files: dict[str, int]
    """File -> bytes."""
    steps: dict[int, str]
    """Exported step of the run -> its folder."""
    origin: str | None
    """The remote repository of the commit."""
    moves: list[str]
    """When main began to lead to it, and why."""
    training_time: TrainingTime | None


def described(registry: Folder, name: str) -> Described:
    """A revision, as far as its files say something of it."""
    folder, main = registry.folder(name), registry.main()
    files = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files_below([folder])}
    provenance = Provenance.find(folder / PROVENANCE)
    evaluation, git = PublishedEvaluation.find(folder / EVALUATION), provenance.git if provenance else None
    training = folder / record_path(TRAIN_REPORT)
    facts = (provenance and provenance.training) or {}
    is_timed = facts.keys() >= TrainingTime.model_fields.keys()
    return Described(
        revision=name,
        main=name == main,
        published=registry.published(name),
        bits_per_byte=evaluation.bits_per_byte if evaluation else None,
        interval_95=evaluation.interval_95.bits_per_byte if evaluation else None,
        documents=evaluation.documents if evaluation else 0,
        parameters=read_json(training).get("parameters") if training.is_file() else None,
        bytes=sum(files.values()),
        bytes_of_its_own=registry.freed_by_removing(name),
        run=registry.run(name),
        commit=git.commit if git else None,
        dirty=git.dirty if git else None,
        location=folder.as_posix(),
        files=files,
        steps={step: path.as_posix() for step, path in registry.steps(name).items()},
        origin=git.origin if git else None,
        moves=[f"{move.at:%Y-%m-%d %H:%M} {move.why}" for move in read_moves(registry.path, main) if move.to == name],
        training_time=TrainingTime.model_validate(facts) if is_timed else None,
    )


def printed_list(rows: Sequence[Described]) -> str:
    """A line for each revision; `*` is the one that main leads to."""
    lines = [("*" if row.main else "", *cells(row)) for row in rows]
    return aligned([HEADING, *lines]) if lines else "nothing is published"


def printed_revision(found: Described) -> str:
    """Everything about a revision, a line for each fact."""
    rows = [
        *zip(HEADING[1:], cells(found), strict=True),
        ("in", found.location),
        ("from", found.origin or "no remote repository"),
        *(("main", move) for move in found.moves),
        *([("useful time", found.training_time.text)] if found.training_time else []),
        *((f"step {step}", where) for step, where in found.steps.items()),
        *((path, decimal(count)) for path, count in found.files.items()),
        ("in the browser", f"parrotflow published show {found.revision} --page"),
    ]
    return aligned(rows)


def cells(row: Described) -> tuple[str, ...]:
    """A revision's cells below the heading, without the first."""
    return (
        row.revision,
        f"{row.published:%Y-%m-%d %H:%M}",
        "" if row.bits_per_byte is None else f"{row.bits_per_byte:g}",
        between(row.interval_95, row.documents),
        "" if row.parameters is None else f"{row.parameters:,}",
        decimal(row.bytes),
        decimal(row.bytes_of_its_own),
        row.run or "",
        f"{row.commit[:12]}{' dirty' if row.dirty else ''}" if row.commit else "",
    )


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
