"""What DVC knows of the project: what dvc.lock records of the stages that led to a file, and its own workspaces.

The record of a revision has the parameters, versions and pipeline as its stages ran with them: copies of files that may
have been edited since. Where params.yaml or requirements.lock say something else than was recorded, the copy has the
recorded values, and its comments.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import md5
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from stages.formats.evaluation.report import EVALUATE_REPORT
from stages.formats.model_folder import MODEL
from stages.formats.revision.lock import Stages, hash_of, makers_of, overlaps
from stages.formats.revision.provenance import CARD_FOLDER, record_path
from stages.runtime.entry import UserError
from stages.runtime.inputs import DVC_FILE
from stages.runtime.section import PARAMS_FILE, value_at
from stages.runtime.stage_code import FOLDER, REQUIREMENTS_LOCK, StageCode, normalised, pinned, read_stage_code

LOCK = Path("dvc.lock")

COPIED = {path.as_posix() for path in (PARAMS_FILE, DVC_FILE, REQUIREMENTS_LOCK, LOCK)}
"""The files of the project that a record always has, so that no source archive needs them."""

NULL = "tag:yaml.org,2002:null"

TEMPORARY = (".dvc/tmp/exps", ".parrotflow/sweep", ".parrotflow/sweep-check")
"""Folders with the workspaces of DVC experiments, and with the clones of a sweep's cells."""
"""Below this folder are the workspaces of `dvc exp run --temp` and `--queue`, which DVC deletes afterwards."""


def read_lock(path: Path = LOCK) -> Stages:
    """The stages of dvc.lock, or of dvc.yaml; empty where there is no such file."""
    if not path.exists():
        return {}
    # YAML 1.2 as DVC writes it, in which 1e-05 is a number.
    stages: Stages = YAML(typ="safe").load(path).get("stages", {})
    return stages


def recorded_section(stages: Stages, name: str) -> dict[str, Any]:
    """A section of params.yaml as the stage that depends on it last ran with; empty where none is recorded."""
    recorded = (stage.get("params", {}).get("params.yaml", {}) for stage in stages.values())
    section: dict[str, Any] = next((params[name] for params in recorded if name in params), {})
    return section


def recorded_code(stages: Stages) -> dict[str, StageCode | None]:
    """Each stage's file of code -> what the stage ran with; None where the file is another by now."""
    found: dict[str, StageCode | None] = {}
    for stage in stages.values():
        for dep in stage.get("deps", []):
            path = Path(dep["path"])
            if path.parent == FOLDER:
                content = path.read_bytes() if path.is_file() else b""
                same = md5(content, usedforsecurity=False).hexdigest() == hash_of(dep)
                found[dep["path"]] = read_stage_code(content) if same else None
    return found


def recorded_versions(stages: Stages) -> dict[str, str]:
    """Library -> the version that the stages ran with, as far as that is recorded.

    Raises UserError where two stages ran with different versions.
    """
    versions: dict[str, str] = {}
    for path, code in recorded_code(stages).items():
        for library, version in code.libraries.items() if code else ():
            if versions.setdefault(library, version) != version:
                raise UserError(
                    f"{path}: its stage ran with {library} {version}, another one with {versions[library]}: no one "
                    "state of the project made this model; run `dvc repro`"
                )
    return versions


def publish_deps() -> list[str]:
    """The paths that dvc.yaml lists for publish; without dvc.yaml what it always reads."""
    always = [MODEL.as_posix(), CARD_FOLDER.as_posix(), EVALUATE_REPORT.as_posix()]
    return deps_of(read_lock(DVC_FILE).get("publish", {})) or always


def require_one_chain(stages: Stages) -> None:
    """Raise UserError if a stage read another version of an output than dvc.lock has: it did not run since."""
    made = {out["path"]: hash_of(out) for entry in stages.values() for out in entry.get("outs", [])}
    for name, entry in stages.items():
        for dep in entry.get("deps", []):
            if made.get(dep["path"], hash_of(dep)) != hash_of(dep):
                raise UserError(f"{LOCK}: {name} ran before {dep['path']} was made anew: run `dvc repro {name}`")


def deps_of(defined: Mapping[str, Any]) -> list[str]:
    """The paths that a stage of dvc.yaml lists."""
    return [dep if isinstance(dep, str) else next(iter(dep)) for dep in defined.get("deps") or []]


def not_in_lock(stages: Stages, inputs: Iterable[str]) -> list[str]:
    """The inputs that no stage in dvc.lock has made."""
    made = makers_of(stages)
    return [path for path in inputs if not any(overlaps(path, out) for out in made)]


def outside_deps(stages: Stages) -> Iterator[dict[str, Any]]:
    """The files and folders that stages depend on and that none of them makes, each once, as dvc.lock has them."""
    made, seen = makers_of(stages), set()
    for stage in stages.values():
        for dep in stage.get("deps", []):
            if dep["path"] not in seen and not any(overlaps(dep["path"], out) for out in made):
                seen.add(dep["path"])
                yield dep


def ancestors(stages: Stages, inputs: Iterable[str]) -> Stages:
    """The stages that the inputs come from, each after those that it depends on.

    Without the one that records the code: it depends on every file of code, and its results are kept themselves.
    """
    ordered: Stages = {}

    def add(paths: Iterable[str]) -> None:
        for name in sorted(stages):
            if name not in ordered and any(
                overlaps(path, out["path"]) and out["path"] != FOLDER.as_posix()
                for path in paths
                for out in stages[name].get("outs", [])
            ):
                add([dep["path"] for dep in stages[name].get("deps", [])])
                ordered[name] = stages[name]

    add(list(inputs))
    return ordered


def in_temporary_workspace(folder: Path) -> bool:
    """Return True in the workspace of a DVC experiment or in the clone of a sweep's cell."""
    path = f"{folder.absolute().as_posix()}/"
    return any(f"/{place}/" in path for place in TEMPORARY)


def settings(stages: Stages) -> dict[str, bytes]:
    """Path in the revision -> content, of the files that say what the stages ran with. Those that are not there lack.

    `stages` are the entries of dvc.lock that led to the revision. Raises UserError where they contradict each other.
    """
    versions, values = recorded_versions(stages), edited(stages)
    code = (Path(path) for path, code in recorded_code(stages).items() if code)
    kept = (PARAMS_FILE, REQUIREMENTS_LOCK, DVC_FILE, *code)
    contents = {path: path.read_bytes() for path in kept if path.is_file()} | {LOCK: lock_of(stages)}
    if values and PARAMS_FILE in contents:
        contents[PARAMS_FILE] = with_values(contents[PARAMS_FILE], values)
    if REQUIREMENTS_LOCK in contents:
        contents[REQUIREMENTS_LOCK] = with_pins(contents[REQUIREMENTS_LOCK], versions)
    return {record_path(path): content for path, content in contents.items()}


def edited(stages: Stages) -> dict[str, Any]:
    """Dotted key -> the value that the stages read of params.yaml, where it has another one by now.

    Raises UserError where two stages ran with other values of the same key.
    """
    recorded: dict[str, Any] = {}
    for name, stage in stages.items():
        for key, value in stage.get("params", {}).get(PARAMS_FILE.as_posix(), {}).items():
            if recorded.setdefault(key, value) != value:
                raise UserError(
                    f"{LOCK}: {name} ran with {key} = {value}, another stage with {recorded[key]}: no one "
                    "state of the project made this model; run `dvc repro`"
                )
    now = YAML(typ="safe").load(PARAMS_FILE) if PARAMS_FILE.is_file() else {}
    return {key: value for key, value in recorded.items() if value_at(now, key) != value}


def stages_of_another_pipeline(stages: Stages) -> list[str]:
    """The stages whose command or dependencies in dvc.yaml are not those that ran. Templates are not compared."""
    defined = read_lock(DVC_FILE)
    return [name for name, stage in stages.items() if name in defined and is_edited(defined[name], stage)]


def is_edited(defined: Mapping[str, Any], ran: Mapping[str, Any]) -> bool:
    """Whether a stage of dvc.yaml is not the one of an entry of dvc.lock."""
    command, deps = defined.get("cmd", "${"), set(deps_of(defined))
    if any("${" in text for text in (*deps, str(command))):
        return False
    return bool(command != ran["cmd"] or deps != {dep["path"] for dep in ran.get("deps", [])})


def with_values(content: bytes, values: Mapping[str, Any]) -> bytes:
    """A YAML file's content with some values changed, and its comments."""
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


def with_pins(content: bytes, versions: Mapping[str, str]) -> bytes:
    """requirements.lock with these versions."""
    pins = pinned(REQUIREMENTS_LOCK)
    changed = {name: version for name, version in versions.items() if pins.get(normalised(name), "") != (name, version)}
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
