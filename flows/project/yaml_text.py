"""YAML as text that people write: edited with its comments, its order and its indentation kept."""

from io import StringIO
from typing import Any

from ruamel.yaml import YAML


def load(text: str) -> Any:
    """The document, with its comments."""
    return _yaml().load(text)


def dump(document: Any) -> str:
    """The document's text; what was not changed is as it was."""
    stream = StringIO()
    _yaml().dump(document, stream)
    return stream.getvalue()


def _yaml() -> YAML:
    yaml = YAML()
    yaml.width, yaml.preserve_quotes = 10_000, True
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.representer.add_representer(
        type(None), lambda dumper, _: dumper.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    return yaml
