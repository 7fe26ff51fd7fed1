"""From sources to documents: what is taken, what is left out and why."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from license_expression import Licensing

from stages.collect.source_kinds import TOO_LARGE, SourceItem, SourcePart
from stages.formats.documents import Document, document_id, text_size
from stages.runtime.workers import Progress

if TYPE_CHECKING:  # its kinds of sources import this module
    from stages.collect.params import CollectParams

LICENSING = Licensing()

NOT_UTF8 = "not UTF-8"

UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""How a text in UTF-16 begins."""

NAMED_AT_MOST = 100_000
"""The most left out texts that are named in the report; the others are counted."""


@dataclass(slots=True)
class Taken:
    """What the corpus takes, by source, and what it leaves out, counted while the documents pass."""

    documents: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    """Of text."""
    total_bytes: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Reason -> texts left out."""
    left_out: list[tuple[str, str, str]] = field(default_factory=list)
    """Source, path and reason of the first of them."""
    not_utf8_bytes: int = 0
    """Bytes of the contents that are not UTF-8."""
    not_utf8_example: str = ""
    encoding: str = "cp1252"
    """What the example may be encoded in."""

    def leave_out(self, item: SourceItem | Document, reason: str) -> None:
        """Count a text that is left out, and name it while there is room."""
        self.reasons[reason] += 1
        if len(self.left_out) < NAMED_AT_MOST:
            self.left_out.append((item.source, item.path, reason))


def gather(params: "CollectParams", taken: Taken) -> Iterator[Document]:
    """Every document of every source, within the limits; `taken` counts them."""
    progress = Progress("collect", "documents")
    for source in params.sources:
        for part in source.parts(params.max_document_bytes):
            for document in documents_taken(part, params, taken):
                if params.max_bytes is not None and taken.total_bytes + document.size > params.max_bytes:
                    taken.leave_out(document, "over collect.max_bytes, with all after it")
                    return
                taken.documents[document.source] += 1
                taken.bytes[document.source] += document.size
                taken.total_bytes += document.size
                progress.advance(lambda: f"{taken.total_bytes / 1e6:,.0f} MB of text")
                yield document


def documents_taken(part: SourcePart, params: "CollectParams", taken: Taken) -> Iterator[Document]:
    """The documents of a part up to the first that does not fit; the rest is counted with its reason."""
    total = 0
    for item in part.items:
        found = examine(item, part.share, params)
        if isinstance(found, str):
            taken.leave_out(item, found)
            if found == NOT_UTF8:
                taken.not_utf8_bytes += len(item.content)
                if not taken.not_utf8_example:
                    taken.not_utf8_example = item.path
                    taken.encoding = "utf-16" if item.content[:2] in UTF16 else taken.encoding
            continue
        total += found.size
        if part.max_bytes is not None and total > part.max_bytes:
            taken.leave_out(item, "over the source's max_bytes, with all after it")
            return
        yield found


def examine(item: SourceItem, share: float, params: "CollectParams") -> Document | str:
    """An item as a document, or why it is left out."""
    if item.reason:
        return item.reason
    if not (is_allowed(item.license, params.licenses) if item.license else params.unlicensed):
        return f"licence not allowed: {item.license or 'unknown'}"
    text, flaw = check_text(item.content)
    if flaw := flaw or (TOO_LARGE if text_size(text) > params.max_document_bytes else ""):
        return flaw
    identifier = document_id(text)
    if int(identifier[-16:], 16) >= share * 2**64:  # a draw that depends on the content alone
        return "not in the source's share"
    return Document(identifier, item.source, item.revision, item.path, item.license, text)


def check_text(content: bytes | str) -> tuple[str, str]:
    """A content as text, and why it cannot be a document: one of them empty. A byte-order mark is not part of it."""
    try:
        data = content.encode("utf-8") if isinstance(content, str) else content
        is_utf16 = data.startswith(UTF16)
        if b"\0" in data and not is_utf16:
            return "", "binary (NUL bytes)"
        text = data.decode("utf-8-sig")
    except UnicodeError:
        return "", NOT_UTF8
    return (text, "") if text.strip() else ("", "empty")


@cache
def _parsed(expression: str) -> Any:
    try:
        return LICENSING.parse(expression)
    except Exception:  # the library raises bare ones besides its own
        return None


def is_allowed(expression: str, allowed: Collection[str]) -> bool:
    """Whether an SPDX expression can be met with allowed licences alone.

    `A OR B` needs one of them, `A AND B` both; `A WITH exception` passes as A (an exception only adds permissions)
    or where it is allowed by its full name. Anything that is no expression is not allowed.
    """
    parsed = _parsed(expression)
    return parsed is not None and _is_met(parsed, allowed)


def _is_met(node: Any, allowed: Collection[str]) -> bool:
    if isinstance(node, LICENSING.OR):
        return any(_is_met(part, allowed) for part in node.args)
    if isinstance(node, LICENSING.AND):
        return all(_is_met(part, allowed) for part in node.args)
    base = getattr(node, "license_symbol", node)
    return node.render() in allowed or base.render() in allowed
