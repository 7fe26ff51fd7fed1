"""The reference describes each key of a model."""

from typing import Annotated, Literal

from pydantic import Field

from docs._build.reference import comments
from docs._build.schema_tables import tables
from stages.runtime.section import Section


class Lake(Section):
    """Of water."""

    kind: Literal["lake"]
    """A lake."""
    depth: Annotated[float, Field(gt=0)] | None
    """In metres; null is unknown."""


class River(Section):
    """Of running water."""

    kind: Literal["river"]
    """A river."""


class Landscape(Section):
    """What there is."""

    water: Annotated[Lake | River, Field(discriminator="kind")]
    """The water."""
    names: list[str]
    """Its names."""


def test_a_table_has_type_value_and_meaning_of_each_key_and_one_for_each_choice() -> None:
    values = {"water": {"kind": "lake", "depth": 3.5}, "names": ["a", "b"]}

    lines = tables("landscape", Landscape, values, {"landscape.names": "the newest one first"})

    assert '| `names` | list of text | `["a", "b"]` | Its names. (the newest one first) |' in lines
    assert "### `landscape.water, lake`" in lines
    assert "| `depth` | number > 0 or null | `3.5` | In metres; null is unknown. |" in lines
    assert "### `landscape.water, river`" in lines
    assert "| `kind` | `river` | A river. |" in lines, "without a column of values if none is set"


def test_comments_of_yaml_are_found_by_dotted_key() -> None:
    text = "# a head\na:\n  b: 1     # one\n  c:\n    d: '#2'  # two\ne: {f: 1}  # three\n"

    assert comments(text) == {"a.b": "one", "a.c.d": "two", "e": "three"}
