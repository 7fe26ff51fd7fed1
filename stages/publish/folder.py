"""Publishes to a folder: `NAME/revisions/REVISION` is kept for good, the link `NAME/main` leads to the current one.

Files are read-only, and equal files of several revisions are one file with several names (hard links).

`history.jsonl` has a line for each move of `main`, written before `main` is moved. After a crash between the two the
last line names a revision that `main` does not lead to: such lines never happened, are not shown, and are replaced by
the next move.
"""

import errno
import fcntl
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import BaseModel, Field

from stages.formats.evaluation.report import PublishedEvaluation
from stages.formats.reports import read_rows
from stages.formats.revision.provenance import (
    EVALUATION,
    HISTORY,
    MAIN,
    PROVENANCE,
    REVISIONS,
    RUNS,
    Provenance,
    Receipt,
    step_name,
)
from stages.publish.revision import ExportedStep, Gate, Revision, exported_steps, run_of_model
from stages.runtime.atomic import atomic_folder, atomic_write, file_sha256, flush_to_disk
from stages.runtime.entry import UserError

READ_ONLY = 0o444

NO_LINK = {errno.EPERM, errno.EMLINK, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES}
"""The file system has no hard links, no more of this file, or none to there: a copy takes more room, no less."""

Why: TypeAlias = Literal["published", "promoted", "rolled back"]


class Move(BaseModel, frozen=True, extra="ignore", populate_by_name=True):
    """One move of `main`."""

    at: datetime
    """UTC."""
    before: str | None = Field(alias="from")
    """The revision that `main` led to; None for the first publication."""
    to: str
    why: Why


def publish_to_folder(revision: Revision, location: Path, gate: Gate) -> Receipt:
    """Store a revision and the exported steps of its run below `location`, and let `main` lead to the revision.

    What is there already is not written again. Raises RefusedError if what `main` leads to now is better, UserError if
    a revision of that name has other content.
    """
    kept = location / REVISIONS / revision.name
    with only_writer(location):
        before = main_of(location)
        if before not in (None, revision.name):
            gate.check_not_worse(PublishedEvaluation.find(location / MAIN / EVALUATION), location.as_posix())
        stored = stored_files(location)
        if kept.is_dir():
            require_intact(kept, revision.sha256)
        else:
            index = Provenance.find(revision.files[PROVENANCE])
            store(revision.files, index.files if index else revision.sha256, kept, stored)
        run, steps = run_of_model(), exported_steps()
        folders = store_steps(location / RUNS / run, steps, stored) if run else {}
        if steps and not run:
            print("exported steps are not published: how these weights were trained is not recorded (train_execution)")
        move_main(location, revision.name, "published")
    return Receipt(
        destination="folder",
        location=location.as_posix(),
        revision=revision.name,
        run=run,
        steps={step: folder.relative_to(location).as_posix() for step, folder in folders.items()},
        sha256=revision.sha256,
    )


def store_steps(run: Path, steps: Sequence[ExportedStep], stored: dict[str, list[Path]]) -> dict[int, Path]:
    """Store the exported steps of a run, unless they are there; step -> its folder.

    Other hardware may have trained other weights in a run of the same name: the last ones published are kept.
    """
    folders = {step.number: run / step_name(step.number) for step in steps}
    for step in steps:
        folder = folders[step.number]
        if not is_intact(folder, step.content.sha256):
            if folder.exists():
                print(f"{folder}: replaced, for the same run has made other weights")
            store(step.content.files, step.content.sha256, folder, stored)
    return folders


@contextmanager
def only_writer(location: Path) -> Iterator[None]:
    """One process at a time changes what is published at `location`; the others wait. Ends with its process."""
    location.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(location, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def main_of(location: Path) -> str | None:
    """The name of the revision that `main` leads to, also where that was deleted; None where there is no `main`.

    Raises UserError where it is no link: a copy of what is published did not keep it.
    """
    main = location / MAIN
    if main.exists() and not main.is_symlink():
        raise UserError(
            f"{main}: is no link, as a copy of {location} did not keep it (`cp -a` and `rsync -a` do): delete it, then "
            "`parrotflow published promote REVISION` makes the link"
        )
    return main.resolve().name if main.is_symlink() else None


def move_main(location: Path, name: str, why: Why) -> None:
    """Let `main` lead to a revision that is stored, and record the move, unless it leads there."""
    before = main_of(location)
    if before != name:
        record_move(location, before, name, why)
    link(location / MAIN, Path(REVISIONS) / name)


def store(files: Mapping[str, Path], sha256: Mapping[str, str], target: Path, stored: dict[str, list[Path]]) -> None:
    """Make the folder `target` of these files, all or nothing; a file that is stored already is linked, not copied.

    `stored` has the files of a sha256 (`stored_files`), and gets those that are new.
    """
    with atomic_folder(target) as folder:
        for path, file in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            if not linked(folder / path, sha256.get(path), stored):
                copy(file, folder / path)
                (folder / path).chmod(READ_ONLY)
        require_intact(folder, sha256)
    for path, digest in sha256.items():
        stored[digest].append(target / path)


def stored_files(location: Path) -> dict[str, list[Path]]:
    """The files of each sha256 that the revisions below `location` say they have."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted((location / REVISIONS).glob(f"[!.]*/{PROVENANCE}")):
        provenance = Provenance.find(path)
        for name, digest in provenance.files.items() if provenance else ():
            found[digest].append(path.parent / name)
    return found


def linked(target: Path, digest: str | None, stored: Mapping[str, list[Path]]) -> bool:
    """Whether `target` is now another name of a stored file with that sha256, which was read to be sure of it."""
    for candidate in stored.get(digest or "", ()):
        if candidate.is_file() and file_sha256(candidate) == digest:
            try:
                os.link(candidate, target)
            except OSError as error:
                if error.errno not in NO_LINK:
                    raise
                return False
            target.chmod(READ_ONLY)  # stored by a version that left it writable
            return True
    return False


def copy(source: Path, target: Path) -> None:
    """Copy a file. An error names the target: shutil's names the source, whose disk is not the one that is full."""
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error


def require_intact(folder: Path, sha256: Mapping[str, str]) -> None:
    """Compare each file with its sha256. Raises UserError that names the first that differs."""
    wrong = next((path for path in sha256 if not is_intact(folder, {path: sha256[path]})), None)
    if wrong is not None:
        raise UserError(
            f"{folder / wrong}: differs from what was published as this revision; delete {folder} and run "
            "`dvc repro -f -s publish`"
        )


def is_intact(folder: Path, sha256: Mapping[str, str]) -> bool:
    """Whether each file is there and has its sha256."""
    return all((folder / path).is_file() and file_sha256(folder / path) == sha256[path] for path in sha256)


def link(path: Path, target: Path) -> None:
    """Make `path` a relative link to `target`. At each instant there is the old link or the new one."""
    if path.is_symlink() and path.readlink() == target:
        return
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(target, target_is_directory=True)
    partial.replace(path)
    flush_to_disk(path.parent)


def read_moves(location: Path, main: str | None) -> list[Move]:
    """The moves up to the one that led `main` to where it leads now; empty where none is recorded."""
    path = location / HISTORY
    remedy = "delete the lines that were not written by publish; a rollback needs them, and nothing else"
    moves = read_rows(path, Move, remedy) if path.exists() else []
    return moves[:-1] if moves and moves[-1].to != main else moves


def record_move(location: Path, main: str | None, to: str, why: Why) -> None:
    """Write that `main` moves from where it leads now, which the caller does next."""
    moves = [
        *read_moves(location, main),
        Move(at=datetime.now(UTC).replace(microsecond=0), before=main, to=to, why=why),
    ]
    atomic_write(location / HISTORY, "".join(move.model_dump_json(by_alias=True) + "\n" for move in moves))


def before_main(moves: list[Move], kept: set[str]) -> str | None:
    """The revision that `main` led to before, of those that are kept; None where there is none.

    A rollback takes the move back that it follows, so the next one goes a step further: after A, B, C two rollbacks
    lead to A.
    """
    led_to: list[str] = []
    for move in moves:
        if move.before is not None and not led_to:
            led_to.append(move.before)  # published before moves were recorded
        if move.why == "rolled back" and move.to in led_to:
            del led_to[len(led_to) - led_to[::-1].index(move.to) :]
        else:
            led_to.append(move.to)
    current = led_to[-1] if led_to else None
    return next((name for name in reversed(led_to) if name in kept and name != current), None)
