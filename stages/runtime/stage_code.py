"""The code that each stage depends on: `data/code/NAME.json`, which the DVC stage `code` writes.

It lists the files of the stage's import closure with the hashes of their syntax trees, and the libraries with their
versions in requirements.lock. An edit or an upgrade therefore reruns exactly the stages that use it, a comment none.
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
"""The module whose DVC stage writes the folder; it has no file there."""

REQUIREMENTS_LOCK = Path("requirements.lock")

COMPUTE = "compute"
"""The name of a stage's package of code that its results depend on, if it has other code too."""

WITHOUT_EFFECT = {"pydantic", "pyyaml", "ruamel-yaml"}
"""Libraries that only read parameters; upgrades would rerun every stage without changing a result."""

OTHER_NAMES = {"ruamel": "ruamel-yaml", "sklearn": "scikit-learn", "yaml": "pyyaml"}
"""Module -> library, if their names differ. The record must not depend on what is installed."""

_COMMAND = re.compile(r"-m\s+(stages(?:\.\w+)+)")

# Skips a build tag such as +cpu.
_PIN = re.compile(r"([\w.-]+)==([^\s;+]+)[^\s;]*(?:\s*;\s*(.+?))?((?:\s+--hash=sha256:[0-9a-f]{64})*)\s*(?:#.*)?$")


@with_config(ConfigDict(extra="forbid", strict=True))
@dataclass(frozen=True, slots=True)
class StageCode:
    """The code of one stage."""

    files: dict[str, str]
    """File of the import closure -> hash of its syntax tree (`stages.runtime.code`)."""
    libraries: dict[str, str]
    """Library that these files import or require, as spelled in requirements.lock -> version."""
    computing_sha256: str
    """The hash of the code that results depend on, which is in the keys of shards, checkpoints and recorded cells: the
    closure of the package `compute` if there is one, else all these files, without `stages/runtime`."""

    @property
    def text(self) -> str:
        """The content of the file."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    def changes_to(self, new: "StageCode") -> list[str]:
        """Describe changed files and libraries."""
        return [
            *(f"{file} {how}" for file, how in file_changes(self, new).items()),
            *(f"{name} {old or 'nothing'} → {now or 'nothing'}" for name, old, now in library_changes(self, new)),
        ]


_ADAPTER = TypeAdapter(StageCode)


def file_changes(old: StageCode, new: StageCode) -> dict[str, str]:
    """File -> how it changed, sorted by file."""
    how = {
        file: "is new" if file not in old.files else "is not used any more" if file not in new.files else "modified"
        for file in sorted(old.files.keys() | new.files.keys())
    }
    return {file: text for file, text in how.items() if old.files.get(file) != new.files.get(file)}


def library_changes(old: StageCode, new: StageCode) -> list[tuple[str, str | None, str | None]]:
    """(library, old version, new version) of each change; a version is None if the library was or is not used."""
    names = sorted(old.libraries.keys() | new.libraries.keys(), key=str.lower)
    versions = [(name, old.libraries.get(name), new.libraries.get(name)) for name in names]
    return [entry for entry in versions if entry[1] != entry[2]]


def code_in(file: Path) -> StageCode | None:
    """Read the record of a stage's code; None if it is missing or has another format."""
    try:
        return _ADAPTER.validate_json(file.read_bytes()) if file.is_file() else None
    except ValidationError:
        return None


def code_path(module: str) -> Path:
    """The record of a stage's code: `stages.evaluate.score` -> `data/code/evaluate.score.json`."""
    return FOLDER / f"{module.removeprefix('stages.')}.json"


def modules_of(command: object) -> list[str]:
    """The modules that a command or a list of commands runs as `python -m stages.NAME`."""
    return _COMMAND.findall(str(command))


def stage_modules(root: Path = Path()) -> list[str]:
    """The packages in `stages/`, also nested ones, that can be run."""
    packages = (path.parent.relative_to(root).as_posix() for path in (root / "stages").rglob("__main__.py"))
    return sorted({package.replace("/", ".") for package in packages} - {WRITER})


def stage_codes(root: Path = Path(), modules: Iterable[str] | None = None) -> dict[Path, StageCode]:
    """`code_path` -> current code of these stages, or of all. Raises UserError if a file is not Python."""
    sources, pins, params = CodeFiles(root), pinned(root / REQUIREMENTS_LOCK), _params(root / PARAMS_FILE)
    return {
        code_path(module): _code_of(module, sources, pins, params)
        for module in (stage_modules(root) if modules is None else modules)
    }


def code_changes(recorded: Mapping[Path, StageCode | None], root: Path = Path()) -> Iterator[str]:
    """Yield the differences of the code in `root` from recorded code (None: its file is missing or damaged)."""
    present = stage_codes(root, [f"stages.{path.stem}" for path in recorded])
    for path, code in recorded.items():
        changes = ["is missing"] if code is None else code.changes_to(present[path])
        yield from (f"{path}: {change}" for change in changes)


def code_of(module: str, root: Path = Path()) -> StageCode:
    """The current code of a stage. Raises UserError if a file is not Python."""
    return stage_codes(root, [module])[code_path(module)]


@cache
def computing_sha256(module: str, root: Path = ROOT) -> str:
    """`StageCode.computing_sha256` of the stage that contains a module, read once per process.

    Results with another hash (shards, checkpoints, stored answers, recorded cells) are not reused. Packages that are
    only sources of documents do not count, so adding one keeps the shards of the others.

    Empty for modules outside of `stages` and `flows`, as in tests. Raises ValueError for a module there that belongs to
    no stage, because its edits would not count.
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
    corpus = {normalized(name) for name in _packages(params, module.rpartition(".")[2])}

    def code(files: list[str]) -> tuple[dict[str, str], dict[str, str]]:
        required = {normalized(name) for file in computing(files) for name in sources.module(file).required}
        imported = {_library_of(name, pins, required) for name in sources.libraries(files)} - WITHOUT_EFFECT
        used = sorted(imported | required | corpus)
        hashes = {file: sources.module(file).sha256 for file in files}
        return hashes, dict(pins[name] for name in used if name in pins)

    files = sources.closure_of(module)
    computes = code(computing(sources.closure_of(f"{module}.{COMPUTE}.") or files))
    return StageCode(*code(files), hashlib.sha256(json.dumps(computes, sort_keys=True).encode()).hexdigest())


def _library_of(module: str, pins: Mapping[str, tuple[str, str]], required: Collection[str]) -> str:
    """The normalized name of the pinned library of a module; the module's name if it is in the standard library.

    Raises UserError if no pinned library contains the module.
    """
    library = normalized(OTHER_NAMES.get(module, module))
    if module in sys.stdlib_module_names or library in pins or library in required:
        return library
    names = sorted(map(normalized, packages_distributions().get(module, ())))
    if not (libraries := [name for name in names if name in pins]):
        raise UserError(
            f"the stages import `{module}`, but {REQUIREMENTS_LOCK} pins no library that has it (installed: "
            f"{', '.join(names) or 'none'}), so an upgrade would go unnoticed: install it and pin it there; your own "
            "modules belong below stages/"
        )
    return libraries[0]


def _params(path: Path) -> Any:
    try:
        return read_yaml(path.read_bytes())
    except (FileNotFoundError, YAMLError):
        return {}


def _packages(params: Any, section: str) -> set[str]:
    """The installed packages that a section of params.yaml lists as sources of documents."""
    try:
        sources = [source for source in params[section]["sources"] if source["kind"] == "packages"]
        return {str(name) for source in sources for name in source["names"]}
    except (KeyError, TypeError):
        return set()  # the check of the section reports the fault


def pinned(lock: Path = REQUIREMENTS_LOCK, *, here: bool = False, hashes: bool = False) -> dict[str, tuple[str, str]]:
    """The pins of requirements.lock: normalized name (PEP 503) -> name as spelled there, version.

    `here`: skip pins whose markers (PEP 508) exclude this platform. `hashes`: append the hashes of the files to each
    version. Raises UserError if a line pins nothing.
    """
    pins: dict[str, tuple[str, str]] = {}
    for line in (lock.read_text(encoding="utf-8") if lock.is_file() else "").replace("\\\n", " ").splitlines():
        if match := _PIN.match(line):
            name, number, marker, listed = match.groups()
            if not (here and marker) or Marker(marker).evaluate():
                pins[normalized(name)] = (name, number + listed if hashes else number)
        elif line.strip() and not line.strip().startswith(("#", "-")):  # a comment, an option
            raise UserError(f"{lock}: `{line}`: write NAME==VERSION, or an upgrade would go unnoticed")
    return pins


def normalized(name: str) -> str:
    """A distribution's name, normalized as in PEP 503."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def require_locked(*libraries: str, lock_file: Path = REQUIREMENTS_LOCK) -> None:
    """Raise UserError unless each library is installed in the version that requirements.lock pins.

    Call this for libraries that a stage depends on without importing them; imported ones are checked automatically
    (`stages.runtime.stage`).
    """
    pins = pinned(lock_file)
    for library in libraries:
        if normalized(library) not in pins:
            raise UserError(f"{library}: not in {lock_file}, so an upgrade would go unnoticed: pin it there")
        _, wanted = pins[normalized(library)]
        if (present := installed(library) or "not installed") != wanted:
            raise UserError(
                f"{library}: {lock_file} says {wanted}, found {present}; run `make setup`, or, if you upgraded it on "
                f"purpose, write the installed version into {lock_file}"
            )
