"""`parrotflow params --fill`: a params.yaml of an older version is brought up to date.

Parameters that were renamed are moved with their value; missing ones get the default of the version that brought them.
Defaults are in params.yaml alone, so git is asked: the newest committed params.yaml that has the parameter, on any
branch, gives its value and its comment.
"""

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flows.plan.params import section_models
from flows.project import yaml_text
from stages.runtime.dotted import value_at
from stages.runtime.section import PARAMS_FILE, Section

RENAMED = {
    "train.exact_micro_batch_size": "train.deterministic_micro_batch_size",
    "train.optimizer.learning_rate": "train.optimizer.adamw_learning_rate",
    "train.optimizer.matrix_learning_rate": "train.optimizer.muon_learning_rate",
    "clean.decontamination.words": "clean.decontamination.ngram_size",
    "evaluate.samples": "generate.headers",
}
"""Parameters by their old dotted keys. An entry stays for good: anyone may come from any older version."""


def filled_text(params_file: Path = PARAMS_FILE) -> tuple[str, list[str]]:
    """params.yaml's text brought up to date, and what is left for a person to do, a line each."""
    document = yaml_text.load(params_file.read_text(encoding="utf-8"))
    for old, new in RENAMED.items():
        _move(document, old.split("."), new.split("."))
    left: list[str] = []
    for name, model in section_models().items():
        missing = _faults(document, name, model, "missing") if name in document else [(name,)]
        for path in missing:
            if not _fill(document, path):
                left.append(f"{'.'.join(path)}: missing, and no params.yaml in git has it; set it by hand")
        for path in _faults(document, name, model, "extra_forbidden"):
            key = ".".join(path)
            renamed = f"is now {RENAMED[key]}, which is set too; remove one" if key in RENAMED else ""
            left.append(f"{key}: {renamed or 'unknown; correct its name or remove it'}")
    return yaml_text.dump(document), left


def _faults(document: Any, name: str, model: type[Section], kind: str) -> list[tuple[str, ...]]:
    """The keys that a section lacks (`missing`), or has beyond its model (`extra_forbidden`)."""
    try:
        model.model_validate(document.get(name) or {}, strict=False)
    except ValidationError as error:
        return [(name, *map(str, line["loc"])) for line in error.errors() if line["type"] == kind]
    return []


def _move(document: Any, old: list[str], new: list[str]) -> None:
    """Move a value with its comment. Where its new section is missing, a mapping replaces the defaults there."""
    source = value_at(document, ".".join(old[:-1]))
    if not isinstance(source, dict) or old[-1] not in source:
        return
    value = source[old[-1]]
    if isinstance(value, dict) and new[0] not in document and _fill(document, (new[0],)):
        target = value_at(document, ".".join(new))
        for position, name in enumerate(value):
            _insert(target, position, name, value[name], _comment(value, name))
        del source[old[-1]]
        return
    target = value_at(document, ".".join(new[:-1]))
    if isinstance(target, dict) and new[-1] not in target:
        position = list(source).index(old[-1]) if source is target else len(target)
        _insert(target, position, new[-1], value, _comment(source, old[-1]))
        del source[old[-1]]


def _fill(document: Any, path: tuple[str, ...]) -> bool:
    """Put a parameter with its default next to the one it follows there; whether there is a default."""
    *parents, last = path
    target = value_at(document, ".".join(parents)) if parents else document
    if not isinstance(target, dict):
        return False
    for version in _committed_versions():
        source = value_at(version, ".".join(parents)) if parents else version
        if isinstance(source, dict) and last in source:
            before = [key for key in list(source)[: list(source).index(last)] if key in target]
            position = list(target).index(before[-1]) + 1 if before else 0
            _insert(target, position, last, source[last], _comment(source, last))
            return True
    return False


def _insert(target: Any, position: int, key: str, value: Any, comment: str) -> None:
    target.insert(position, key, value, comment=comment or None)


def _comment(mapping: Any, key: str) -> str:
    """The comment at the end of a key's line."""
    token = (mapping.ca.items.get(key) or [None] * 3)[2]
    return token.value.split("\n")[0].removeprefix("#").strip() if token else ""


@cache
def _committed_versions() -> tuple[Any, ...]:
    """Every committed params.yaml, newest first."""
    log = ["git", "log", "--all", "--format=%H", "--", str(PARAMS_FILE)]
    commits = subprocess.run(log, capture_output=True, text=True, check=False).stdout.split()
    shows = (["git", "show", f"{commit}:./{PARAMS_FILE}"] for commit in commits)
    texts = (subprocess.run(show, capture_output=True, text=True, check=False).stdout for show in shows)
    documents = (yaml_text.load(text) for text in texts if text)
    return tuple(document for document in documents if isinstance(document, dict))
