from pathlib import Path
from typing import Annotated, Literal

import pytest
from dvc.utils.serialize import dumps_yaml, load_yaml
from pydantic import Field
from ruamel.yaml.error import YAMLError

from stages.runtime.errors import UserError
from stages.runtime.section import Section, differences, flatten, read_section, read_yaml, value_at, write_yaml


class Optimizer(Section):
    name: Literal["adamw", "muon"]
    """Which optimizer."""
    learning_rate: Annotated[float, Field(gt=0)]
    """Peak learning rate."""


class Toy(Section):
    steps: Annotated[int, Field(ge=1)]
    """Optimizer steps."""
    optimizer: Optimizer
    """The optimizer."""


GOOD = "toy: {steps: 3, optimizer: {name: adamw, learning_rate: 1e-3}}\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "params.yaml"
    path.write_text(text)
    return path


def test_a_section_is_read_into_its_model_and_1e_3_is_a_number(tmp_path: Path) -> None:
    toy = read_section("toy", Toy, write(tmp_path, GOOD))

    assert toy == Toy(steps=3, optimizer=Optimizer(name="adamw", learning_rate=0.001))


@pytest.mark.parametrize(
    "value", ["010", "0o10", "0x1F", "1_000", "12:30", "1e3", ".5", "yes", "on", "~", "2026-11-27"]
)
def test_a_value_is_the_one_that_dvc_records(tmp_path: Path, value: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(f"key: {value}\n")

    for trusted in (True, False):
        assert read_yaml(path.read_bytes(), trusted=trusted) == load_yaml(path)


def test_a_key_that_is_there_twice_is_refused_and_so_is_a_strangers_text_that_is_too_deep() -> None:
    with pytest.raises(YAMLError, match="duplicate key"):
        read_yaml("{a: 1, a: 2}")
    with pytest.raises(RecursionError):
        read_yaml("[" * 100_000, trusted=False)  # a crash of the process in C


def test_values_are_written_as_dvc_writes_them_and_read_back() -> None:
    values = {"b": [1e-05, "1.0", None, {"x": "yes"}], "a": {}}

    assert read_yaml(write_yaml(values)) == values
    assert write_yaml(values) == dumps_yaml(values)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("steps: 3", "steps: 0", "toy.steps = 0: Input should be greater than or equal to 1"),
        ("steps: 3", "steps: '3'", "toy.steps = '3': Input should be a valid integer"),
        ("steps: 3", "steps: true", "toy.steps = True: Input should be a valid integer"),
        ("steps: 3, ", "", "toy.steps: missing; after an upgrade take it from the new version's params.yaml"),
        ("steps: 3", "steps: 3, stps: 4", "toy.stps: unknown parameter (value 4); correct its name or remove it"),
        ("adamw", "lion", "toy.optimizer.name = 'lion': Input should be 'adamw' or 'muon'"),
        ("toy", "tay", "section `toy` is missing"),
        ("toy", "[", "not valid YAML"),
        ("steps: 3", "steps: 3, steps: 4", 'line 1: not valid YAML: found duplicate key "steps"'),
        ("name: adamw", "name: 2026-11-27", "toy: Object of type date is not JSON serializable; quote it"),
        (GOOD, "3", "expected a section per stage, found int"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_its_value_and_what_is_allowed(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    path = write(tmp_path, GOOD.replace(before, after, 1))

    with pytest.raises(UserError) as refused:
        read_section("toy", Toy, path)

    assert message in str(refused.value)
    assert str(path) in str(refused.value)


def test_every_fault_is_reported_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("steps: 3", "steps: 0").replace("1e-3", "-1"))

    with pytest.raises(UserError) as refused:
        read_section("toy", Toy, path)

    assert len(str(refused.value).splitlines()) == 2


def test_a_misspelled_key_is_named_once_with_the_one_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        read_section("toy", Toy, write(tmp_path, GOOD.replace("steps: 3", "stps: 3")))

    assert str(refused.value).endswith("toy.stps: unknown parameter (value 3); did you mean `steps`?")
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_bytes("toy: Köln".encode("latin-1"))

    with pytest.raises(UserError, match=r"params\.yaml: not valid YAML: unacceptable character .* UTF-8"):
        read_section("toy", Toy, tmp_path / "params.yaml")


def test_a_missing_file_says_where_to_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not found; run this from the project's root"):
        read_section("toy", Toy, tmp_path / "params.yaml")


class Files(Section):
    kind: Literal["files"]
    """Which kind of source."""
    limits: list[Annotated[int, Field(ge=1)]]
    """Bytes."""


class Hub(Section):
    kind: Literal["hub"]
    """Which kind of source."""


class Sources(Section):
    sources: list[Annotated[Files | Hub, Field(discriminator="kind")]]
    """Of several kinds."""


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (
            "[{kind: hub}, {kind: files, limits: [1, 0]}]",
            "sources.1.limits.1 = 0: Input should be greater than or equal",
        ),
        ("[{kind: files}]", "sources.0.limits: missing"),
        ("[{kind: s3}]", "sources.0.kind = 's3': expected one of 'files', 'hub'"),
        ("[{limits: [1]}]", "sources.0.kind: missing"),
    ],
)
def test_a_value_of_one_of_several_kinds_is_named_by_the_keys_that_lead_to_it(
    tmp_path: Path, sources: str, message: str
) -> None:
    with pytest.raises(UserError) as refused:
        read_section("toy", Sources, write(tmp_path, f"toy: {{sources: {sources}}}"))

    assert f"toy.{message}" in str(refused.value)


VALUES = {"a": {"b": 1, "c": {}}, "d": [1]}


def test_a_dotted_key_leads_to_a_value() -> None:
    assert value_at(VALUES, "a.b") == 1
    assert value_at(VALUES, "d") == [1]
    assert value_at(VALUES, "d.x") is None
    assert value_at(VALUES, "x.y") is None


def test_differences_reach_the_leaves() -> None:
    old, new = {"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": 1, "c": 3}, "d": [1, 2], "e": None}

    assert list(differences("x", old, new)) == [("x.a.c", 2, 3), ("x.d", [1], [1, 2])]
    assert list(differences("", old, new)) == [("a.c", 2, 3), ("d", [1], [1, 2])]


def test_leaves_are_known_by_their_dotted_keys() -> None:
    assert flatten(VALUES) == {"a.b": 1, "d": [1]}
