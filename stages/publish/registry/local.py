"""The revisions in a folder, `published/NAME`. Those on the Hub are shown and managed by the Hub and its client."""

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path

from stages.formats.evaluation.report import PublishedEvaluation
from stages.formats.revision.execution import Execution
from stages.formats.revision.layout import EVALUATION, EXECUTION, MAIN, PROVENANCE, REVISIONS, RUNS, run_name
from stages.publish.folder import main_of, move_main, only_writer
from stages.publish.gate import Gate
from stages.publish.registry.history import Move, Why, read_moves
from stages.runtime.entry import UserError

LEAST_DIGITS = 4
"""Of an abbreviated name, as in git."""


class Folder:
    """A folder with revisions of any version of parrotflow."""

    def __init__(self, path: Path) -> None:
        """Raises UserError where nothing is published in `path`."""
        self.path, self.location = path, path.as_posix()
        if not (path / REVISIONS).is_dir():
            raise UserError(f"{path}: nothing is published here; `parrotflow run publish` publishes")

    def changing(self) -> AbstractContextManager[None]:
        """One process at a time; the others wait."""
        return only_writer(self.path)

    def names(self) -> list[str]:
        """By the time of their publication."""
        found = [path.name for path in (self.path / REVISIONS).glob("[!.]*") if path.is_dir()]
        return sorted(found, key=lambda name: (self.published(name), name))

    def full_name(self, given: str) -> str:
        """The revision that `given` means: its name, the first digits of it, or `main`. Raises UserError."""
        if given == MAIN:
            return self.main_revision()
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

    def moves(self) -> list[Move]:
        """As they were recorded."""
        return read_moves(self.path, self.main())

    def published(self, name: str) -> datetime:
        """When its last file was written, which is its provenance."""
        folder = self.folder(name)
        written = folder / PROVENANCE if (folder / PROVENANCE).exists() else folder
        return datetime.fromtimestamp(int(written.stat().st_mtime), UTC)

    def sizes(self, name: str) -> Mapping[str, int]:
        """Of every file below its folder."""
        folder = self.folder(name)
        return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files_below([folder])}

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

    def run(self, name: str) -> str | None:
        """The name of the run that a revision comes from; None where it is not recorded."""
        execution = Execution.find(self.folder(name) / EXECUTION)
        return run_name(execution.fingerprint) if execution else None

    def move_main(self, name: str, why: Why, gate: Gate | None) -> None:
        """Move the link."""
        if gate is not None and self.main() not in (None, name):
            gate.check_not_worse(PublishedEvaluation.find(self.path / MAIN / EVALUATION), self.location)
        move_main(self.path, name, why)

    def freed_by_removing(self, name: str) -> int:
        """The bytes of the files that have no name elsewhere."""
        return bytes_of_their_own(self.leaving(name))

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


def bytes_of_their_own(folders: Iterable[Path]) -> int:
    """The bytes on disk of the files below these folders that have no other name (hard link) elsewhere."""
    stats = [path.stat() for path in files_below(folders)]
    names = Counter((stat.st_dev, stat.st_ino) for stat in stats)
    files = {(stat.st_dev, stat.st_ino): stat for stat in stats}
    return sum(stat.st_size for file, stat in files.items() if stat.st_nlink == names[file])
