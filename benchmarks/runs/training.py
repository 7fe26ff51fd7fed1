"""The models that are measured, as `train` sections of params.yaml."""

from pathlib import Path
from typing import Any

import yaml

from flows.project.compose import composed_text

ROOT = Path(__file__).parents[2]

MINI = "GPT-2 of 4.3 million parameters"
"""The model of the preset gpt2_mini, as figures on record name it."""


DEFAULT = "a Qwen3-like transformer of 1.1 million parameters"
"""The model of params.yaml as it is shipped."""


def default_section() -> dict[str, Any]:
    """The `train` section of params.yaml."""
    params: dict[str, dict[str, Any]]
    params = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    return params["train"]


def mini_section() -> dict[str, Any]:
    """The same with the preset gpt2_mini."""
    params: dict[str, dict[str, Any]]
    params = yaml.safe_load(composed_text(["model=gpt2_mini"], ROOT / "params.yaml", ROOT / "conf"))
    return params["train"]
