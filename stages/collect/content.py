"""What a content is: a text that can be a document, or why it is none. Found out once for a file that does not change.

A file is taken to hold what it held when its size, times (of its content and of its entry) and inode are the same, as
git and DVC do. Not so one that had changed just before it was read: a further change could have left the same times.
"""

import json
import time
from dataclasses import astuple, dataclass
from pathlib import Path

from stages.formats.documents import Document, document_id, text_size
from stages.runtime.atomic import atomic_write
from stages.runtime.code import code_key
from stages.runtime.entry import UserError
from stages.runtime.shard_cache import CACHE

SEEN = CACHE / "files.json"

SETTLED_NS = 2_000_000_000
"""Coarser than the clock of any file system in use."""

State = tuple[int, int, int, int]
"""Size in bytes, time of the content's and of the entry's last change in nanoseconds, inode."""


@dataclass(frozen=True, slots=True)
class Look:
    """What was found in a content."""

    id: str
    """The text's; empty where there is a flaw."""
    size: int
    """Bytes of the text in UTF-8."""
    flaw: str
    """Why it can be no document; empty where it can."""
    text: str | None
    """None where it still lies in its file."""


@dataclass(frozen=True, slots=True)
class UnreadDocument:
    """A document whose text still lies in its file: everything but the text is known from an earlier look."""

    id: str
    source: str
    revision: str
    path: str
    license: str
    size: int

    @property
    def sort_key(self) -> tuple[str, str, str, str, str]:
        """As `Document.sort_key`."""
        return (self.id, self.source, self.path, self.revision, self.license)

    def read(self) -> Document:
        """The document. Raises UserError if its file is gone or holds something else by now."""
        try:
            found = look(Path(self.path).read_bytes())
        except OSError:
            found = None
        if found is None or found.text is None or found.id != self.id:
            raise UserError(f"collect: {self.path} changed while it was collected; run again")
        return Document(self.id, self.source, self.revision, self.path, self.license, found.text)


def look(content: bytes | str) -> Look:
    """Look at a content. A byte-order mark at the start is not part of the text."""
    try:
        data = content.encode("utf-8") if isinstance(content, str) else content
        text = data.decode("utf-8-sig")
    except UnicodeError:
        return Look("", 0, "not UTF-8", None)
    if "\0" in text:
        return Look("", 0, "binary (NUL bytes)", None)
    if not text.strip():
        return Look("", 0, "empty", None)
    return Look(document_id(text), text_size(text), "", text)


class SeenFiles:
    """What the last run saw in files, and what this one sees."""

    def __init__(self) -> None:
        self._code = code_key(look)
        self._before: dict[str, list[int | str]] = {}
        self._now: dict[str, list[int | str]] = {}
        try:
            saved = json.loads(SEEN.read_text(encoding="utf-8"))
            if saved["code"] == self._code:
                self._before = saved["files"]
        except (OSError, ValueError, KeyError, TypeError):
            return  # Nothing seen yet, or cut off: everything is read.

    def known(self, name: str, state: State) -> Look | None:
        """What the file held, where it is as it was then."""
        entry = self._before.get(name)
        if entry is None or tuple(entry[:4]) != state:
            return None
        self._now[name] = entry
        identifier, size, flaw = entry[4:]
        return Look(str(identifier), int(size), str(flaw), None)

    def remember(self, name: str, state: State, found: Look) -> None:
        """Keep what a file holds for the next run."""
        # A name that is no Unicode is written out in the document, which then could not be found again by it.
        settled = time.time_ns() - max(state[1], state[2]) > SETTLED_NS
        if settled and name.encode("utf-8", "replace").decode("utf-8") == name:
            self._now[name] = [*state, *astuple(found)[:3]]

    def save(self) -> None:
        """Write it down; what was not met any more is forgotten."""
        if self._now != self._before:
            SEEN.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(SEEN, json.dumps({"code": self._code, "files": self._now}))
