"""The JSON schemas that an editor reads: as current as the models, and true of the files that name them."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft7Validator

from docs._build.schemas import SCHEMAS, schemas
from stages.runtime.section import read_yaml

ROOT = Path(__file__).parents[2]
EXPERIMENT_FILES = [*sorted((ROOT / "experiments").glob("*.yaml")), ROOT / "conf/new_experiment.yaml"]
FILES = {ROOT / "params.yaml": "params.json", **dict.fromkeys(EXPERIMENT_FILES, "experiment.json")}


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return schemas(ROOT)


def test_the_schemas_are_those_of_the_models(made: dict[str, str]) -> None:
    there = {path.name: path.read_text(encoding="utf-8") for path in SCHEMAS.iterdir()}

    assert there == made, "`python -m docs._build.schemas` writes them"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_names_its_schema_in_the_first_line_and_is_valid(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    named = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")

    assert (file.parent / named).resolve() == SCHEMAS / FILES[file]
    schema = json.loads((SCHEMAS / FILES[file]).read_text(encoding="utf-8"))
    assert [error.message for error in Draft7Validator(schema).iter_errors(read_yaml(text))] == []


@pytest.mark.parametrize(
    ("key", "value"), [("clean.filters.line_length_maximum", "long"), ("train.nonesuch", 1), ("publish.private", 3)]
)
def test_a_wrong_value_and_an_unknown_key_are_marked(made: dict[str, str], key: str, value: object) -> None:
    values = read_yaml((ROOT / "params.yaml").read_bytes())
    *places, last = key.split(".")
    within = values
    for place in places:
        within = within[place]
    within[last] = value

    (error,) = Draft7Validator(json.loads(made["params.json"])).iter_errors(values)
    assert last in f"{error.json_path} {error.message}"
