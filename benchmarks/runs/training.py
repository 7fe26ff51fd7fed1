"""The model that is measured, as a `train` section of params.yaml."""

from pathlib import Path
from typing import Any

import yaml

from flows.project.compose import composed_text

ROOT = Path(__file__).parents[2]

MINI = "GPT-2 of 4.3 million parameters"
"""The model of the preset gpt2_mini, as figures on record name it."""


def mini_section() -> dict[str, Any]:
    """The `train` section of params.yaml with the preset gpt2_mini."""
    params: dict[str, dict[str, Any]]
    params = yaml.safe_load(composed_text(["model=gpt2_mini"], ROOT / "params.yaml", ROOT / "conf"))
    return params["train"]
