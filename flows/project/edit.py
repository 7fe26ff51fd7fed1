"""YAML edited in place, as params.yaml is: values by dotted keys change, and no other line does."""

import difflib
import itertools
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from stages.runtime.errors import UserError
from stages.runtime.section import PARAMS_FILE


def open_yaml(text: str) -> Any:
    """Read a text to edit it: mappings and lists that also hold its comments. Raises ruamel.yaml's YAMLError."""
    return _editor().load(text)


def apply(values: Any, overrides: Mapping[str, Any]) -> None:
    """Set plain or opened values by their dotted keys, one after the other; make mappings that are missing.

    A mapping replaces the one that is there. Raises UserError for a section that is missing, and at a key that leads
    through a value that is no mapping.
    """
    for key, value in overrides.items():
        *places, name = key.split(".")
        within = values
        for number, place in enumerate(places, 1):
            if within.get(place) is None and (place in within or number > 1):
                within[place] = {}
            within = within.get(place)
            if not isinstance(within, dict):
                raise UserError(f"{key}: {PARAMS_FILE} has no `{'.'.join(places[:number])}`")
        _replace(within, name, value)


def _replace(within: Any, name: str, value: Any) -> None:
    """Put a value at a name. If a mapping replaces a mapping, equal values in it stay, with their comments."""
    old = within.get(name)
    if isinstance(value, Mapping) and isinstance(old, Mapping):
        for gone in [each for each in old if each not in value]:
            del within[name][gone]
        for each, part in value.items():
            _replace(old, each, part)
    elif name not in within or old != value:
        within[name] = deepcopy(value)


def edited(text: str, values: Any) -> str:
    """Return the text with the values that were opened from it and have changed since.

    If its lists are indented in another way, so that lines of both do not fit together, all of it is written anew.
    """
    with suppress(YAMLError):
        result = merged(text, _dumped(open_yaml(text)), _dumped(values))
        if open_yaml(result) == values:
            return result
    return _dumped(values)


def merged(text: str, old: str, new: str) -> str:
    """Return the text with the lines that differ between `old`, the text as our writer has it, and `new`."""
    texts, olds, news = (each.splitlines(keepends=True) for each in (text, old, new))
    now = [[line] for line in olds]
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, olds, news, autojunk=False).get_opcodes():
        if tag == "insert":
            now[max(i1 - 1, 0)] += news[j1:j2]
        elif tag != "equal":
            now[i1:i2] = [news[j1:j2], *([] for _ in range(i1 + 1, i2))]
    result: list[str] = []
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, olds, texts, autojunk=False).get_opcodes():
        is_kept = tag != "equal" and now[i1:i2] == [[line] for line in olds[i1:i2]]
        result += texts[j1:j2] if is_kept else itertools.chain.from_iterable(now[i1:i2])
    return "".join(result)


def _editor() -> YAML:
    yaml = YAML()
    yaml.width, yaml.preserve_quotes = 10_000, True
    yaml.representer.add_representer(
        type(None), lambda dumper, _: dumper.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    return yaml


def _dumped(values: Any) -> str:
    stream = StringIO()
    _editor().dump(values, stream)
    return stream.getvalue()
