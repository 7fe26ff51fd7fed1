"""What stages take from files by DVC's templating: `${section.key}` in dvc.yaml. It need not be listed under `params`.

Read from the text of dvc.yaml: DVC's own list, `stage.tracked_vars`, lacks sections that a command unpacks.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from dvc.stage import PipelineStage

_KEY = re.compile(r"\$\{\s*([\w.-]+)")

CHANGES_NO_RESULT = ("meta", "desc")
"""Of a stage in dvc.yaml."""


def keys_in_templates(stages: Iterable[Any]) -> set[str]:
    """The dotted keys that stages have as `${key}`, of params.yaml or of another file of their `vars`."""
    return {key for stage in _of_pipelines(stages) for key in _KEY.findall(json.dumps(_definition(stage)))}


def files_of_templates(stages: Iterable[Any]) -> set[Path]:
    """The files that stages, or their whole dvc.yaml, name under `vars`."""
    found: set[Path] = set()
    for stage in _of_pipelines(stages):
        whole = _content(stage).get("vars") or ()
        definition = _definition(stage)
        own = definition.get("do", definition).get("vars") or ()
        for folder, entries in ((Path(stage.path).parent, whole), (Path(stage.wdir), own)):
            found |= {folder / entry.partition(":")[0] for entry in entries if isinstance(entry, str)}
    return found


def _of_pipelines(stages: Iterable[Any]) -> Iterator[PipelineStage]:
    return (stage for stage in stages if isinstance(stage, PipelineStage))


def _definition(stage: PipelineStage) -> dict[str, Any]:
    written = _content(stage)["stages"][str(stage.name).partition("@")[0]]
    return {key: value for key, value in written.items() if key not in CHANGES_NO_RESULT}


def _content(stage: PipelineStage) -> dict[str, Any]:
    return yaml.safe_load(Path(stage.path).read_text(encoding="utf-8")) or {}
