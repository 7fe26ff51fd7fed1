"""Rows as documents: which fields of a row hold the text, and what else it says of itself."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from stages.collect.source_kinds import TOO_LARGE, NamedSource, SourceItem, SourceName
from stages.formats.rows import NO_VALUE, RowValues, field_of
from stages.runtime.credentials import without_credentials
from stages.runtime.errors import visible
from stages.runtime.section import Section

NO_TEXT = "no text in the row"

UNKNOWN_LICENSE = "NOASSERTION"
"""SPDX's name for a license that is not known, for one among several."""

MAX_SHOWN_FIELDS = 20


class Fields(Section):
    """Names of the fields (columns) with a row's own facts; null if a row does not say. `meta.path` is nested."""

    source: SourceName | None
    """e.g. `repo_name`: what documents are held out by."""
    path: SourceName | None
    """e.g. `path` or `id`; else the file's path and the row's number."""
    license: SourceName | None
    """e.g. `license`: an SPDX expression, or a list of them, of which all must be allowed."""

    @property
    def named(self) -> list[str]:
        """The fields that are not null."""
        return [field for field in self.model_dump().values() if field]


def rows_as_items(
    source: NamedSource, rows: Iterable[tuple[int, RowValues]], where: str, text: Sequence[str], fields: Fields
) -> Iterator[SourceItem]:
    """The rows of a file as items, each with its own facts, or the source's.

    Notes the file if fewer than half of its rows have a text, or if no row has a field that `fields` names.
    """
    count = texts = 0
    has = ""
    absent = set(fields.named)
    for number, row in rows:
        count += 1
        if row is None:
            yield source.left_out(f"{where}#{number}", TOO_LARGE)
            continue
        has = has or ", ".join(
            name if value is None or isinstance(value, str) else f"{name} ({type(value).__name__})"
            for name, value in islice(row.items(), MAX_SHOWN_FIELDS)
        )
        absent -= {field for field in absent if field_of(row, field) is not NO_VALUE}
        item = _item(source, row, f"{where}#{number}", text, fields)
        texts += not item.reason
        yield item
    # Not reached if a limit ends the source early: later rows may have the fields.
    if texts * 2 < count:
        source.notes.append(
            visible(f"{where}: {texts:,} of {count:,} rows have a text in {' or '.join(text)}; fields: {has or 'none'}")
        )
    for field in sorted(absent) if count else ():
        # With a misspelled `license` each row has the source's.
        source.notes.append(visible(f"params.yaml: collect.sources: fields: no row of {where} has `{field}`"))


def _item(source: NamedSource, row: Mapping[str, Any], name: str, text: Sequence[str], fields: Fields) -> SourceItem:
    texts = [value for field in text if isinstance(value := field_of(row, field), str | bytes)]
    content = next((value for value in texts if value.strip()), texts[0] if texts else None)
    own = {fact: _as_text(fact, field_of(row, field)) if field else "" for fact, field in fields.model_dump().items()}
    if content is None:
        return SourceItem(own["source"] or source.name, name, reason=NO_TEXT)
    path = without_credentials(own["path"] or name)
    return SourceItem(own["source"] or source.name, path, source.revision, own["license"] or source.license, content)


def _as_text(fact: str, value: Any) -> str:
    """A fact of a row as text. Of several licenses each applies to the document, so all of them must be allowed."""
    if value is None or value is NO_VALUE:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if fact == "license" and isinstance(value, list):
        licenses = list(dict.fromkeys(_as_text(fact, license) for license in value))
        if len(licenses) > 1:
            return " AND ".join(
                f"({license})" if " " in license else license or UNKNOWN_LICENSE for license in licenses
            )
        return "".join(licenses)
    return str(value)
