"""Edits YAML such as params.yaml in place: values change by dotted keys, comments and order stay.

The format is that of `dvc exp run -S`, so in a params.yaml of this format no other line changes.
"""

from collections.abc import Mapping
from copy import deepcopy
from io import StringIO
from typing import Any

from ruamel.yaml import YAML

from stages.runtime.errors import UserError
from stages.runtime.section import PARAMS_FILE


def open_yaml(text: str) -> Any:
    """Parse a text into mappings and lists that keep its comments. Raises ruamel.yaml's YAMLError."""
    return _editor().load(text)


def apply(values: Any, overrides: Mapping[str, Any]) -> None:
    """Set values, plain or from `open_yaml`, by dotted keys in order, and add missing mappings.

    A mapping replaces an existing one. Raises UserError if the section is missing, or a key leads through a value that
    is not a mapping.
    """
    for key, value in overrides.items():
        *parents, name = key.split(".")
        within = values
        for number, parent in enumerate(parents, 1):
            if within.get(parent) is None and (parent in within or number > 1):
                within[parent] = {}
            within = within.get(parent)
            if not isinstance(within, dict):
                raise UserError(f"{key}: {PARAMS_FILE} has no `{'.'.join(parents[:number])}`")
        _replace(within, name, value)


def _replace(within: Any, name: str, value: Any) -> None:
    """Set a value. If a mapping replaces a mapping, values that are equal keep their comments."""
    old = within.get(name)
    # ruamel.yaml (0.19) writes a mapping that has become empty onto a line of its own after the key's comment.
    if value and isinstance(value, Mapping) and isinstance(old, Mapping):
        for removed in [key for key in old if key not in value]:
            del within[name][removed]
        for key, part in value.items():
            _replace(old, key, part)
    elif name not in within or old != value:
        within[name] = deepcopy(value)


def yaml_text(values: Any) -> str:
    """The text of values from `open_yaml`."""
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
