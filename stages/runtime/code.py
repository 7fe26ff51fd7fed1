"""What "the code" of a module is, and when it has changed. The only answer to that question here.

The code of a module is its import closure within the project: the module, every module that it imports, and so on.
Two versions of a file are equal where their syntax trees without docstrings are, so that a comment, a docstring or a
formatter changes nothing (`stages.runtime.hashes`). Three things ask:

    the DVC stage `code`   stages/runtime/stage_code.py: the files and libraries of each stage, which it depends on
    the cache of stages    `code_key`: the code of the function that computes a result, with its libraries
    the checkpoints        `code_sha256`: the code of the training
"""

import hashlib
import platform
import sys
from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stages.runtime.entry import UserError
from stages.runtime.hashes import Module, read_module

ROOT = Path(__file__).parents[2]
"""The folder that holds the packages `stages` and `flows`, and the project's own folders."""

RUNTIME = "stages/runtime/"
"""How any stage runs, not what it computes: not in the key of a shard or of a checkpoint, or a clearer message there
would throw away a night's work. The DVC stages do depend on it."""

OWN_FOLDERS = ("filters", "sources")
"""Where a project has filters and kinds of sources of its own, at its top (`stages.runtime.section`)."""

PACKAGES = ("stages", "flows", *OWN_FOLDERS)
"""What is ours; any other module is a library or Python's own."""


class Sources:
    """The files of code below a folder, each read once, and which of them import which."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self._modules: dict[str, Module] = {}
        self._imported: dict[str, list[str]] = {}

    def module(self, file: str) -> Module:
        """Read a file. Raises UserError where it is not Python."""
        if file not in self._modules:
            try:
                self._modules[file] = read_module((self.root / file).read_bytes(), file)
            except (SyntaxError, ValueError) as error:
                line = f" line {error.lineno}:" if isinstance(error, SyntaxError) else ""
                raise UserError(f"{file}:{line} {getattr(error, 'msg', error)}; correct it first") from None
        return self._modules[file]

    def closure_of(self, module: str, without: tuple[str, ...] = ()) -> list[str]:
        """The files of `module` (of a package its `__main__`) and of all it imports within the project, sorted.

        Paths are relative to the root. A package's `__init__.py` counts unless it is empty. A module that is only
        named in a string (`"stages.train.worker"`, started as a process) counts as imported, and of
        `import_module(f"stages.clean.filters.{name}")` every module of the package. `without`: beginnings of paths that
        do not count, nor does what only they import.
        """
        command = f"{module}.__main__"
        return self.closure(self._files_of(command if self._file_of(command) else module), without)

    def closure(self, files: Iterable[str], without: tuple[str, ...] = ()) -> list[str]:
        """These files and all that they import within the project, sorted; without those whose paths begin so."""
        found: set[str] = set()
        todo = list(files)
        while todo:
            file = todo.pop()
            if file not in found and not file.startswith(without):
                found.add(file)
                todo += self._imported_by(file)
        return sorted(found)

    def libraries(self, files: Iterable[str]) -> set[str]:
        """The modules outside the project that the files import, those of `stages/runtime` excepted: `yaml`, ..."""
        names = {name.partition(".")[0] for file in computing(files) for name in self.module(file).imports}
        return names - {"", *PACKAGES}

    def sha256(self, files: Iterable[str]) -> str:
        """The hash of the code in the files, those of `stages/runtime` excepted."""
        return _sha256(f"{file} {self.module(file).sha256}" for file in computing(files))

    def _imported_by(self, file: str) -> list[str]:
        if file not in self._imported:
            names = self.module(file).imports
            self._imported[file] = [needed for name in names for needed in self._files_of(name)]
        return self._imported[file]

    def _files_of(self, name: str) -> list[str]:
        """What importing a dotted name runs: its own file, and `__init__.py` of each package unless it is empty.

        Of a name that ends with a dot, the beginning of one that is only known when the code runs, any may be imported.
        """
        parts = name.split(".")
        if parts[0] not in PACKAGES:
            return []
        if not parts[-1]:
            folder = self.root.joinpath(*parts[:-1])
            modules = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
            return [file for module in modules for file in self._files_of(f"{name}{module}")]
        packages = [self._file_of(".".join([*parts[:count], "__init__"])) for count in range(1, len(parts) + 1)]
        files = [file for file in packages if file and (self.root / file).stat().st_size]
        own = self._file_of(name)
        return [*files, own] if own else files

    def _file_of(self, name: str) -> str:
        file = f"{name.replace('.', '/')}.py"
        return file if (self.root / file).is_file() else ""


def computing(files: Iterable[str]) -> list[str]:
    """The files without those of `stages/runtime`."""
    return [file for file in files if not file.startswith(RUNTIME)]


@cache
def code_sha256(module: str, root: Path = ROOT, without: tuple[str, ...] = ()) -> str:
    """The sha256 of the code of a module, read once in a process.

    `without`: beginnings of paths that do not count, nor does what only they import.
    """
    sources = Sources(root)
    return sources.sha256(sources.closure_of(module, without))


def code_key(function: Callable[..., Any]) -> str:
    """Changes with anything but its arguments that the result of `function` depends on, as far as code goes.

    That is the code of its module, the versions of the libraries which that imports, and Python's version.
    """
    while isinstance(function, partial):
        function = function.func
    return _key_of_file(Path(str(sys.modules[function.__module__].__file__)))


@cache
def _key_of_file(file: Path) -> str:
    root = ROOT if file.is_relative_to(ROOT) else Path.cwd()
    sources = Sources(root)
    files = sources.closure([file.relative_to(root).as_posix() if file.is_relative_to(root) else str(file)])
    libraries = sorted(sources.libraries(files) - sys.stdlib_module_names)
    versions = [f"{name} {_installed(name)}" for name in libraries]
    return _sha256([sources.sha256(files), *versions, platform.python_version()])


def _sha256(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _installed(name: str) -> str:
    """The version of the library that a module belongs to."""
    try:
        return version(name).split("+")[0]  # 2.13.0+cpu: the same release on other hardware
    except PackageNotFoundError:
        if find_spec(name) is None:
            return "not installed"
        # Slow, and needed only where the library has another name than its module (PyYAML).
        return " ".join(version(library) for library in packages_distributions().get(name, ()))
