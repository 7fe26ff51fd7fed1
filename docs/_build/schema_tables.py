"""Markdown tables of what a pydantic model accepts: key, type with its bounds, today's value, meaning."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

Schema = Mapping[str, Any]

NOT_THERE = ""

LEAST_NEW_SHARE = 0.6
"""A comment with a smaller share of new words repeats the description."""

_WORD = re.compile(r"\w+")
_BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minItems": "at least {}",
}
_NAMES = {"string": "text", "integer": "whole number", "boolean": "true, false", "object": "mapping", "null": "null"}


def tables(title: str, model: type[BaseModel], values: Mapping[str, Any], notes: Mapping[str, str]) -> list[str]:
    """The lines of a heading and a table for the model, and for each model inside of it.

    `values` are those of the file; `notes` are its comments by dotted key.
    """
    schema = model.model_json_schema()
    return list(_Tables(schema.get("$defs", {}), notes).of(title, title, schema, values, 2))


class _Tables:
    """One walk through a schema, whose models are in `definitions`."""

    def __init__(self, definitions: Mapping[str, Schema], notes: Mapping[str, str]) -> None:
        self.definitions, self.notes = definitions, notes

    def of(self, title: str, key: str, schema: Schema, values: Mapping[str, Any], level: int) -> Iterator[str]:
        yield from (f"{'#' * level} `{title}`", "")
        if not (said := one_line(schema.get("description", ""))).startswith("The section"):  # the heading says so
            yield from (said, "")
        rows: list[tuple[str, str, str, str]] = []
        inside: list[tuple[str, str, Schema, Any]] = []
        for name, field in schema.get("properties", {}).items():
            value = values.get(name, NOT_THERE)
            models = list(self.models_in(field))
            said = self.meaning(field.get("description", ""), self.notes.get(f"{key}.{name}", ""))
            shown = "" if models and not isinstance(value, str | None) else _shown(value)
            rows.append((f"`{name}`", self.type_of(field), shown, one_line(said)))
            one = len(models) == 1
            for found in models:
                fixed = next((part["const"] for part in found.get("properties", {}).values() if "const" in part), "")
                of_this = value if isinstance(value, Mapping) and (one or fixed in value.values()) else {}
                inside.append((f"{title}.{name}{'' if one else f', {fixed}'}", f"{key}.{name}", found, of_this))
        yield from _table(rows)
        yield ""
        for deeper, deeper_key, found, value in inside:
            yield from self.of(deeper, deeper_key, found, value, min(level + 1, 4))

    @staticmethod
    def meaning(description: str, comment: str) -> str:
        """What the model says of a key, and what the file's comment adds to it."""
        words = {*_WORD.findall(comment.lower())}
        adds = len(words - {*_WORD.findall(description.lower())}) > LEAST_NEW_SHARE * len(words)
        return f"{description} ({comment})" if description and adds else description or comment

    def models_in(self, field: Schema) -> Iterator[Schema]:
        """The models that a field is made of, alone or as a list or a choice."""
        if "$ref" in field:
            found = self.definitions[field["$ref"].rpartition("/")[2]]
            if "properties" in found:
                yield found
        for part in [*field.get("anyOf", ()), *field.get("oneOf", ()), *field.get("allOf", ())]:
            yield from self.models_in(part)
        if isinstance(field.get("items"), Mapping):
            yield from self.models_in(field["items"])

    def type_of(self, field: Schema) -> str:
        """A type in words, with its bounds."""
        if "$ref" in field:
            found = self.definitions[field["$ref"].rpartition("/")[2]]
            return "mapping, below" if "properties" in found else self.type_of(found)
        if choices := [*field.get("anyOf", ()), *field.get("oneOf", ())]:
            return " or ".join(dict.fromkeys(self.type_of(part) for part in choices))
        if choices := field.get("enum", [field["const"]] if "const" in field else []):
            return ", ".join(f"`{value}`" for value in choices)
        kind, bounds = field.get("type", "any value"), _bounds(field)
        if kind == "array":
            return f"list of {self.type_of(field.get('items', {}))}{f' ({bounds})' if bounds else ''}"
        name = "text (not empty)" if kind == "string" and field.get("minLength") == 1 else _NAMES.get(kind, kind)
        return f"{name} {bounds}".strip()


def _table(rows: list[tuple[str, str, str, str]]) -> Iterator[str]:
    """A table of keys; without the column of values if none is set in the file."""
    columns = [0, 1, 2, 3] if any(value for _, _, value, _ in rows) else [0, 1, 3]
    for row in (("key", "type", "value", "meaning"), ("---",) * 4, *rows):
        cells = [row[column].replace("|", "\\|") for column in columns]
        yield f"| {' | '.join(cells)} |"


def _bounds(field: Schema) -> str:
    return ", ".join(text.format(f"{field[name]:,}") for name, text in _BOUNDS.items() if name in field)


def _shown(value: Any) -> str:
    if value == NOT_THERE:
        return NOT_THERE
    text = json.dumps(value, ensure_ascii=False)
    return f"`{text}`" if len(text) <= 60 else "(long)"


def one_line(text: str) -> str:
    """Prose without its line breaks."""
    return " ".join(text.split())
