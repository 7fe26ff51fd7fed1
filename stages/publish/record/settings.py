"""The parameters, versions and pipeline of a revision, as its stages ran with them: copies, checked against dvc.lock.

Files are edited after stages have run: where params.yaml or requirements.lock say something else than was recorded, the
copy has the recorded values, and its comments.
"""

import re
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from stages.formats.revision.layout import (
    RECORDED_ACCEPTED,
    RECORDED_LOCK,
    RECORDED_PARAMS,
    RECORDED_PIPELINE,
    RECORDED_REQUIREMENTS,
    record_path,
)
from stages.formats.revision.lock import Stages
from stages.publish.lock import LOCK, recorded_code, recorded_versions
from stages.runtime.entry import UserError
from stages.runtime.section import value_at
from stages.runtime.stage_code import normalised, pinned

PARAMS, PIPELINE = Path("params.yaml"), Path("dvc.yaml")
REQUIREMENTS, ACCEPTED = Path("requirements.lock"), Path("accepted.yaml")

COPIED = {path.as_posix() for path in (PARAMS, PIPELINE, REQUIREMENTS, ACCEPTED, LOCK)}
"""The files of the project that a record always has, so that no source archive needs them."""

NULL = "tag:yaml.org,2002:null"


def settings(stages: Stages) -> dict[str, bytes]:
    """Path in the revision -> content, of the files that say what the stages ran with. Those that are not there lack.

    `stages` are the entries of dvc.lock that led to the revision. Raises UserError where they contradict each other.
    """
    contents = {
        RECORDED_PARAMS: with_values(PARAMS, edited(stages)),
        RECORDED_REQUIREMENTS: with_pins(REQUIREMENTS, recorded_versions(stages)),
        RECORDED_PIPELINE: read(PIPELINE),
        RECORDED_ACCEPTED: read(ACCEPTED),
        RECORDED_LOCK: lock_of(stages),
    }
    contents |= {record_path(path): read(Path(path)) for path, code in recorded_code(stages).items() if code}
    return {path: content for path, content in contents.items() if content is not None}


def read(path: Path) -> bytes | None:
    """A file's content; None where there is none."""
    return path.read_bytes() if path.is_file() else None


def edited(stages: Stages) -> dict[str, Any]:
    """Dotted key -> the value that the stages read of params.yaml, where it has another one by now.

    Raises UserError where two stages ran with other values of the same key.
    """
    recorded: dict[str, Any] = {}
    for name, stage in stages.items():
        for key, value in stage.get("params", {}).get(PARAMS.as_posix(), {}).items():
            if recorded.setdefault(key, value) != value:
                raise UserError(
                    f"{LOCK}: {name} ran with {key} = {value}, another stage with {recorded[key]}: no one "
                    "state of the project made this model; run `dvc repro`"
                )
    now = YAML(typ="safe").load(PARAMS) if PARAMS.is_file() else {}
    return {key: value for key, value in recorded.items() if value_at(now, key) != value}


def stages_of_another_pipeline(stages: Stages) -> list[str]:
    """The stages whose command or dependencies in dvc.yaml are not those that ran. Templates are not compared."""
    defined = YAML(typ="safe").load(PIPELINE).get("stages", {}) if PIPELINE.is_file() else {}
    return [name for name, stage in stages.items() if name in defined and is_edited(defined[name], stage)]


def is_edited(defined: Mapping[str, Any], ran: Mapping[str, Any]) -> bool:
    """Whether a stage of dvc.yaml is not the one of an entry of dvc.lock."""
    command = defined.get("cmd", "${")
    deps = {dep if isinstance(dep, str) else next(iter(dep)) for dep in defined.get("deps") or []}
    if any("${" in text for text in (*deps, str(command))):
        return False
    return bool(command != ran["cmd"] or deps != {dep["path"] for dep in ran.get("deps", [])})


def with_values(path: Path, values: Mapping[str, Any]) -> bytes | None:
    """A YAML file's content with some values changed, and its comments; None where there is no such file."""
    content = read(path)
    if content is None or not values:
        return content
    editor = YAML()
    editor.width, editor.preserve_quotes = 10_000, True
    editor.indent(mapping=2, sequence=4, offset=2)
    editor.representer.add_representer(type(None), lambda dumper, _: dumper.represent_scalar(NULL, "null"))
    document = editor.load(content)
    for key, value in values.items():
        put(document, key.split("."), value)
    stream = StringIO()
    editor.dump(document, stream)
    return stream.getvalue().encode("utf-8")


def put(document: Any, key: list[str], new: Any) -> None:
    """Set a value of a document, leaf by leaf, so that comments stay with what is the same."""
    *above, last = key
    for part in above:
        document = document.setdefault(part, {})
    old = document.get(last)
    if isinstance(old, dict) and isinstance(new, dict):
        for name in old.keys() - new.keys():
            del old[name]
        for name, value in new.items():
            put(old, [name], value)
    elif old != new or last not in document:
        document[last] = new


def with_pins(path: Path, versions: Mapping[str, str]) -> bytes | None:
    """requirements.lock with these versions."""
    content = read(path)
    pins = pinned(path)
    changed = {name: version for name, version in versions.items() if pins.get(normalised(name), "") != (name, version)}
    if content is None or not changed:
        return content
    text = content.decode("utf-8")
    for library, version in changed.items():
        text = re.sub(rf"(?m)^({re.escape(library)})==[^\s;]+", rf"\g<1>=={version}", text)
    return text.encode("utf-8")


def lock_of(stages: Stages) -> bytes:
    """dvc.lock with these stages alone, as DVC writes it; it reads the same file again."""
    stream = StringIO()
    writer = YAML(typ="safe")
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.representer.ignore_aliases = lambda *_: True
    writer.dump({"schema": "2.0", "stages": stages}, stream)
    return stream.getvalue().encode("utf-8")
