"""YAML edited in place, as params.yaml is: values by dotted keys change; comments and the order stay.

Lines have the form in which `dvc exp run -S` writes them too, so in a params.yaml of that form no other line changes.
"""

from collections.abc import Mapping
from copy import deepcopy
from io import StringIO
from typing import Any

from ruamel.yaml import YAML

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


def yaml_text(values: Any) -> str:
    """Return the text of opened values."""
    stream = StringIO()
    _editor().dump(values, stream)
    return stream.getvalue()


def _editor() -> YAML:
    yaml = YAML()
    yaml.width, yaml.preserve_quotes = 10_000, True
    yaml.representer.add_representer(
        type(None), lambda dumper, _: dumper.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    return yaml
