"""Checks whether the content of a file or a row can be a document. A file that does not change is checked once.

A file counts as unchanged while its size, its times (mtime and ctime) and its inode are the same, as in git. One that
changed less than two seconds before the run began is read again: a further change could have left the same times.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from stages.collect.located import BROKEN, by_ending
from stages.formats.documents import Document, document_id, text_size
from stages.runtime.cache import ResultLog, keep_entries
from stages.runtime.code import code_key
from stages.runtime.entry import UserError

SEEN = "files"
"""The kind of the checks in the cache."""

EntryState = tuple[int, int, int, int]
"""Of a file: size in bytes, time of the content's and of the entry's last change in nanoseconds, inode."""

SETTLED_NS = 2_000_000_000
"""Coarser than the clock of any file system in use."""


@dataclass(frozen=True, slots=True)
class ContentCheck:
    """What a check of a content found."""

    id: str
    """Empty where there is a flaw."""
    size: int
    """Bytes of the text in UTF-8."""
    flaw: str
    """Why it cannot be a document; empty where it can."""
    text: str | None
    """None where it was not read again."""


@dataclass(frozen=True, slots=True)
class UnreadDocument(Document):
    """A document of a file that was checked before: its text is empty until `read` reads it."""

    unread_bytes: int

    @property
    def size(self) -> int:
        """As it was when the file was checked."""
        return self.unread_bytes

    def read(self) -> Document:
        """The document. Raises UserError if its file is gone or has changed."""
        try:
            with Path(self.path).open("rb") as file, by_ending(self.path, file) as content:
                found = check_content(content.read())
        except BROKEN:
            found = None
        if found is None or found.text is None or found.id != self.id:
            raise UserError(f"collect: {self.path} changed while it was collected; run again")
        return Document(self.id, self.source, self.revision, self.path, self.license, found.text)


def check_content(content: bytes | str) -> ContentCheck:
    """Check a content. A byte-order mark at the start is not part of the text."""
    try:
        data = content.encode("utf-8") if isinstance(content, str) else content
        text = data.decode("utf-8-sig")
    except UnicodeError:
        return ContentCheck("", 0, "not UTF-8", None)
    if "\0" in text:
        return ContentCheck("", 0, "binary (NUL bytes)", None)
    if not text.strip():
        return ContentCheck("", 0, "empty", None)
    return ContentCheck(document_id(text), text_size(text), "", text)


def can_be_found(name: str) -> bool:
    """Whether a file is found again by its document's path: a name that is not UTF-8 is written out there."""
    return name.encode("utf-8", "replace").decode("utf-8") == name


class SeenFiles:
    """The checks of the files that the last run read, and of those that this one reads."""

    def __init__(self) -> None:
        self.log = ResultLog(SEEN, code_key(check_content))
        self._began = time.time_ns()
        self._before = self.log.read()
        self._now: dict[str, list[int | str]] = {}

    def known(self, name: str, state: EntryState | None) -> ContentCheck | None:
        """The check of a file that has not changed since."""
        entry = self._before.get(name)
        if entry is None or tuple(entry[:4]) != state:
            return None
        self._now[name] = entry
        identifier, size, flaw = entry[4:]
        return ContentCheck(str(identifier), int(size), str(flaw), None)

    def remember(self, name: str, state: EntryState, found: ContentCheck) -> None:
        """Keep the check of a file for the next run."""
        if self._began - max(state[1], state[2]) > SETTLED_NS and can_be_found(name):
            self._now[name] = [*state, found.id, found.size, found.flaw]

    def save(self) -> None:
        """Save the checks; those of files that are gone are dropped."""
        if self._now != self._before:
            self.log.replace(self._now)
        keep_entries(SEEN, [self.log.folder])
