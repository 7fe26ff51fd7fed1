"""The code that each stage depends on: `data/code/NAME.json`, which the DVC stage `code` writes.

It names the files of the stage's import closure with the hashes of their syntax trees, and the libraries with their
versions in requirements.lock. So an edit or an upgrade reruns exactly the stages that use it, and a comment none.
"""

import hashlib
import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from ruamel.yaml.error import YAMLError

from stages.runtime.code import PACKAGES, ROOT, CodeFiles, computing, installed
from stages.runtime.errors import UserError
from stages.runtime.section import PARAMS_FILE, read_yaml

FOLDER = Path("data/code")

WRITER = f"stages.{FOLDER.name}"
"""The module whose DVC stage writes the folder. It has no file there itself."""

REQUIREMENTS_LOCK = Path("requirements.lock")

COMPUTE = "compute"
"""The name of the package in which a stage has what its results depend on, if it has other code too."""

WITHOUT_EFFECT = {"pydantic", "pyyaml", "ruamel-yaml"}
"""Libraries that only read parameters. Their upgrades would rerun every stage without changing a result."""

OTHER_NAMES = {"ruamel": "ruamel-yaml", "sklearn": "scikit-learn", "yaml": "pyyaml"}
"""Module -> library, if their names differ. A table, because the record must not depend on what is installed."""

_COMMAND = re.compile(r"-m\s+(stages(?:\.\w+)+)")

# Without a build tag: +cpu is the same release.
_PIN = re.compile(r"([\w.-]+)==([^\s;+]+)[^\s;]*(?:\s*;\s*(.+?))?((?:\s+--hash=sha256:[0-9a-f]{64})*)\s*(?:#.*)?$")


@with_config(ConfigDict(extra="forbid", strict=True))
@dataclass(frozen=True, slots=True)
class StageCode:
    """The code of one stage."""

    files: dict[str, str]
    """File of the import closure -> hash of its syntax tree (`stages.runtime.code`)."""
    libraries: dict[str, str]
    """Library that these files import or name, as it is spelt in requirements.lock -> version."""
    computing_sha256: str
    """The hash of what the stage computes with, by which shards, checkpoints and recorded cells count: of the closure
    of its package `compute` if it has one, else of all these files; without `stages/runtime`, which only runs it."""

    @property
    def text(self) -> str:
        """As it is in the file."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    def changes_to(self, new: "StageCode") -> list[str]:
        """Describe the differences: files and libraries."""
        return [
            *(f"{file} {how}" for file, how in file_changes(self, new).items()),
            *(f"{name} {old or 'nothing'} → {now or 'nothing'}" for name, old, now in library_changes(self, new)),
        ]


_ADAPTER = TypeAdapter(StageCode)


def file_changes(old: StageCode, new: StageCode) -> dict[str, str]:
    """File -> how it differs, in the order of their names."""
    how = {
        file: "is new" if file not in old.files else "is not used any more" if file not in new.files else "modified"
        for file in sorted(old.files.keys() | new.files.keys())
    }
    return {file: text for file, text in how.items() if old.files.get(file) != new.files.get(file)}


def library_changes(old: StageCode, new: StageCode) -> list[tuple[str, str | None, str | None]]:
    """(library, old version, new version) of each change; None if the stage does not use the library."""
    names = sorted(old.libraries.keys() | new.libraries.keys(), key=str.lower)
    versions = [(name, old.libraries.get(name), new.libraries.get(name)) for name in names]
    return [entry for entry in versions if entry[1] != entry[2]]


def code_in(file: Path) -> StageCode | None:
    """Read the record of a stage's code; None if it is missing or not of this format."""
    try:
        return _ADAPTER.validate_json(file.read_bytes()) if file.is_file() else None
    except ValidationError:
        return None


def code_path(module: str) -> Path:
    """The file of a stage: `stages.evaluate.score` -> `data/code/evaluate.score.json`."""
    return FOLDER / f"{module.removeprefix('stages.')}.json"


def modules_of(command: object) -> list[str]:
    """The modules that a command, or a list of them, runs as `python -m stages.NAME`."""
    return _COMMAND.findall(str(command))


def stage_modules(root: Path = Path()) -> list[str]:
    """The packages below `stages/` that can be run, also nested ones."""
    found = (path.parent.relative_to(root).as_posix() for path in (root / "stages").rglob("__main__.py"))
    return sorted({path.replace("/", ".") for path in found} - {WRITER})


def stage_codes(root: Path = Path(), modules: Iterable[str] | None = None) -> dict[Path, StageCode]:
    """The code of these stages, or of all, as it is now, by `code_path`. Raises UserError if a file is not Python."""
    sources, pins, params = CodeFiles(root), pinned(root / REQUIREMENTS_LOCK), _params(root / PARAMS_FILE)
    return {
        code_path(module): _code_of(module, sources, pins, params)
        for module in (stage_modules(root) if modules is None else modules)
    }


def code_changes(recorded: Mapping[Path, StageCode | None], root: Path = Path()) -> Iterator[str]:
    """Yield how the code in `root` differs from recorded code, which is None if its file is missing or damaged."""
    present = stage_codes(root, [f"stages.{path.stem}" for path in recorded])
    for path, code in recorded.items():
        changes = ["is missing"] if code is None else code.changes_to(present[path])
        yield from (f"{path}: {change}" for change in changes)


def code_of(module: str, root: Path = Path()) -> StageCode:
    """The code of one stage as it is now. Raises UserError if a file is not Python."""
    return stage_codes(root, [module])[code_path(module)]


@cache
def computing_sha256(module: str, root: Path = ROOT) -> str:
    """The hash of what the stage that a module belongs to computes with, read once in a process. Shards, checkpoints
    and stored answers of another one are not used, and a recorded cell runs again. Packages that are only sources of
    documents do not count: one more leaves the shards of the others.

    Modules outside of `stages` and `flows`, as tests have, have an empty one. Raises ValueError for a module there that
    belongs to no stage, whose edits would not count.
    """
    parts = module.split(".")
    packages = (".".join(parts[:count]) for count in range(len(parts), 1, -1))
    stage = next((name for name in packages if root.joinpath(*name.split("."), "__main__.py").is_file()), None)
    if stage is None:
        if parts[0] in PACKAGES:
            raise ValueError(f"{module}: belongs to no stage, so its code would not be in the key; move it into one")
        return ""
    return _code_of(stage, CodeFiles(root), pinned(root / REQUIREMENTS_LOCK), params=None).computing_sha256


def _code_of(module: str, sources: CodeFiles, pins: Mapping[str, tuple[str, str]], params: Any) -> StageCode:
    corpus = {normalised(name) for name in _packages(params, module.rpartition(".")[2])}

    def code(files: list[str]) -> tuple[dict[str, str], dict[str, str]]:
        required = {normalised(name) for file in computing(files) for name in sources.module(file).required}
        imported = {_library_of(name, pins, required) for name in sources.libraries(files)} - WITHOUT_EFFECT
        used = sorted(imported | required | corpus)
        hashes = {file: sources.module(file).sha256 for file in files}
        return hashes, dict(pins[name] for name in used if name in pins)

    files = sources.closure_of(module)
    computes = code(computing(sources.closure_of(f"{module}.{COMPUTE}.") or files))
    return StageCode(*code(files), hashlib.sha256(json.dumps(computes, sort_keys=True).encode()).hexdigest())


def _library_of(module: str, pins: Mapping[str, tuple[str, str]], required: Collection[str]) -> str:
    """The normalised name of the pinned library of a module; of Python's own its name, which nothing pins.

    Raises UserError if a new version of the module would go unnoticed.
    """
    library = normalised(OTHER_NAMES.get(module, module))
    if module in sys.stdlib_module_names or library in pins or library in required:
        return library
    names = sorted(map(normalised, packages_distributions().get(module, ())))
    if not (found := [name for name in names if name in pins]):
        raise UserError(
            f"the stages import `{module}`, but {REQUIREMENTS_LOCK} pins no library that has it (installed: "
            f"{', '.join(names) or 'none'}), so an upgrade would go unnoticed: install it and pin it there; your own "
            "modules belong below stages/"
        )
    return found[0]


def _params(path: Path) -> Any:
    try:
        return read_yaml(path.read_bytes())
    except (FileNotFoundError, YAMLError):
        return {}


def _packages(params: Any, section: str) -> set[str]:
    """The installed packages that a section of params.yaml names as sources of documents: the stage reads them."""
    try:
        asked = [source for source in params[section]["sources"] if source["kind"] == "packages"]
        return {str(name) for source in asked for name in source["names"]}
    except (KeyError, TypeError):
        return set()  # who reads the parameters says what is wrong with them


def pinned(lock: Path = REQUIREMENTS_LOCK, *, here: bool = False, hashes: bool = False) -> dict[str, tuple[str, str]]:
    """The pins of requirements.lock: normalised name (PEP 503) -> name as it is spelt there, version.

    `here`: without those whose marker (PEP 508) says that they are for other platforms. `hashes`: each version is
    followed by the hashes of its files. Raises UserError if a line pins nothing.
    """
    pins: dict[str, tuple[str, str]] = {}
    for line in (lock.read_text(encoding="utf-8") if lock.is_file() else "").replace("\\\n", " ").splitlines():
        if found := _PIN.match(line):
            name, number, marker, listed = found.groups()
            if not (here and marker) or Marker(marker).evaluate():
                pins[normalised(name)] = (name, number + listed if hashes else number)
        elif line.strip() and not line.strip().startswith(("#", "-")):  # a comment, an option
            raise UserError(f"{lock}: `{line}`: write NAME==VERSION, or an upgrade would go unnoticed")
    return pins


def normalised(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def require_locked(*libraries: str, lock_file: Path = REQUIREMENTS_LOCK) -> None:
    """Raise UserError unless each library is installed in the version that requirements.lock names.

    Imported libraries are checked anyway (`stages.runtime.stage`). Call this for libraries that a stage depends on
    without importing them.
    """
    pins = pinned(lock_file)
    for library in libraries:
        if normalised(library) not in pins:
            raise UserError(f"{library}: not in {lock_file}, so an upgrade would go unnoticed: pin it there")
        _, wanted = pins[normalised(library)]
        if (found := installed(library) or "not installed") != wanted:
            raise UserError(
                f"{library}: {lock_file} says {wanted}, found {found}; run `make setup`, or, if you upgraded it on "
                f"purpose, write the installed version into {lock_file}"
            )
