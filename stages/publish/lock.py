"""What DVC knows of the project: what dvc.lock records of the stages that led to a file, and its own workspaces."""

from collections.abc import Iterable, Iterator
from hashlib import md5
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from stages.formats.revision.lock import Stages, hash_of, maker_of, makers_of, outs_of, overlaps
from stages.runtime.entry import UserError
from stages.runtime.inputs import DVC_FILE
from stages.runtime.stage_code import FOLDER, StageCode, read_stage_code

LOCK = Path("dvc.lock")

EXPERIMENTS = (".dvc", "tmp", "exps")
"""Below this folder are the workspaces of `dvc exp run --temp` and `--queue`, which DVC deletes afterwards."""


def read_lock(path: Path = LOCK) -> Stages:
    """The stages of dvc.lock; empty where nothing is locked yet."""
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


def publish_deps() -> list[str] | None:
    """What dvc.yaml lists for publish; None without dvc.yaml: where reproduce lays out what publish saw."""
    if not DVC_FILE.is_file():
        return None
    publish = YAML(typ="safe").load(DVC_FILE).get("stages", {}).get("publish", {})
    return [dep if isinstance(dep, str) else next(iter(dep)) for dep in publish.get("deps") or []]


def maker(stages: Stages, output: Path) -> Stages:
    """The stage that makes `output`; empty where none is recorded."""
    name = maker_of(makers_of(stages), output.as_posix())
    return {name: stages[name]} if name else {}


def not_in_lock(stages: Stages, inputs: Iterable[str]) -> list[str]:
    """The inputs that no stage in dvc.lock has made."""
    known = output_paths(stages)
    return [path for path in inputs if not any(overlaps(path, out) for out in known)]


def output_paths(stages: Stages) -> list[str]:
    """The paths that the pipeline itself writes."""
    return [out["path"] for out in outs_of(stages)]


def outside_deps(stages: Stages) -> Iterator[dict[str, Any]]:
    """The files and folders that stages depend on and that none of them makes, each once, as dvc.lock has them."""
    made, seen = output_paths(stages), set()
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
    """Whether a folder is in a temporary workspace of a DVC experiment."""
    parts = folder.absolute().parts
    return any(parts[start : start + len(EXPERIMENTS)] == EXPERIMENTS for start in range(len(parts)))
