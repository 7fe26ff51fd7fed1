"""What the reference says of a model's keys, and where links lead."""

from pathlib import PurePosixPath
from typing import Annotated, Literal

import pytest
from pydantic import Field

from docsite.links import in_site, rewritten, targets
from docsite.pages import comments, in_fences
from docsite.schema_tables import tables
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
    assert "| `kind` | `river` |  | A river. |" in lines


def test_comments_of_yaml_are_found_by_dotted_key() -> None:
    text = "# a head\na:\n  b: 1     # one\n  c:\n    d: '#2'  # two\ne: {f: 1}  # three\n"

    assert comments(text) == {"a.b": "one", "a.c.d": "two", "e": "three"}


def test_a_block_in_columns_keeps_its_layout() -> None:
    assert in_fences("Prose\nhere.\n\na.json    one\nb.json    two") == [
        "Prose", "here.", "", "```text", "a.json    one", "b.json    two", "```", "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("README.md", "index.md"),
        ("docs/how-to/data.md", "how-to/data.md"),
        ("deploy", "files/deploy/README.md"),
        ("params.yaml", "files/params.yaml.md"),
        (".dvc/config", "files/dvc/config.md"),
        ("stages/formats", "files/stages/formats/index.md"),
    ],
)
def test_each_file_of_the_repository_has_its_place_in_the_site(path: str, place: str) -> None:
    assert in_site(PurePosixPath(path)) == PurePosixPath(place)


def test_links_hold_from_the_page_and_code_is_left_alone() -> None:
    text = "[p](../../params.yaml) [m](training.md#on-gpus) [w](https://dvc.org)\n```\n[x](y.md)\n```"

    page = PurePosixPath("reference/a.md")
    assert rewritten(text, PurePosixPath("docs/how-to/flows.md"), page) == (
        "[p](../files/params.yaml.md) [m](../how-to/training.md#on-gpus) [w](https://dvc.org)\n```\n[x](y.md)\n```"
    )
    assert [*targets(text, PurePosixPath("docs/how-to/flows.md"))] == [
        PurePosixPath("params.yaml"), PurePosixPath("docs/how-to/training.md"),
    ]  # fmt: skip
