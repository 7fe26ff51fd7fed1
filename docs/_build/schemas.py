"""JSON schemas by which an editor checks and completes params.yaml and experiments/*.yaml: `python -m docs._build.schemas`.

They are made of the models that check the same files before a run. The files name them in their first line.
"""

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, create_model

from flows.experiments.drawn import Draw
from flows.experiments.experiment import Experiment
from stages.runtime.preflight import section_models
from stages.runtime.section import Section

SCHEMAS = Path(__file__).parents[1] / "schemas"

FORM = "http://json-schema.org/draft-07/schema#"
"""The form that editors know; pydantic writes a later one, of which nothing is used here that this one lacks."""


def params_schema(root: Path) -> dict[str, Any]:
    """The schema of params.yaml: a section for each stage."""
    fields: dict[str, Any] = {name: (model, ...) for name, model in section_models(root).items()}
    return create_model("Params", __base__=Section, **fields).model_json_schema()


def experiment_schema() -> dict[str, Any]:
    """The schema of an experiment's file, in which an axis may also be drawn."""
    schema, drawn = Experiment.model_json_schema(), TypeAdapter(Draw).json_schema()
    schema["$defs"] |= drawn.pop("$defs", {})
    (levels,) = schema["properties"]["axes"]["patternProperties"].items()
    schema["properties"]["axes"]["patternProperties"] = {levels[0]: {"anyOf": [levels[1], drawn]}}
    return schema


def schemas(root: Path) -> dict[str, str]:
    """Name of each file in `SCHEMAS` -> its text."""
    made = {"params.json": params_schema(root), "experiment.json": experiment_schema()}
    return {name: json.dumps({"$schema": FORM, **one}, indent=1) + "\n" for name, one in made.items()}


if __name__ == "__main__":
    SCHEMAS.mkdir(exist_ok=True)
    for name, text in schemas(SCHEMAS.parents[1]).items():
        (SCHEMAS / name).write_text(text, encoding="utf-8")
