"""What "the code" of a stage or a function is, and when it has changed. The only answer to that question here.

The code of a module is its import closure within the project: the module, every module that it imports, and so on.
Two versions of it are equal where their syntax trees without docstrings are equal, so that a comment, a docstring or a
formatter changes nothing. Four things ask:

    the deps in dvc.yaml         `import_closure`: which files (DVC compares their bytes)
    `parrotflow why`, `accept`   `meaning`: whether a file that differs in bytes differs in code
    the shard cache              `code_key`: the code of the function that computes a shard, with its libraries
    the checkpoints              `code_sha256`: the code of the training
"""

import ast
import hashlib
import platform
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
"""The folder that holds the packages `stages` and `flows`."""

RUNTIME = "stages/runtime/"
"""How any stage runs, not what it computes: not in the key of a shard or of a checkpoint, or a clearer message there
would throw away a night's work. dvc.yaml does list it."""

PACKAGES = ("stages", "flows")
"""What is ours; any other module is a library or Python's own."""

_MODULE_NAME = re.compile(r"stages(\.\w+)+")


def import_closure(module: str, root: Path = ROOT) -> list[str]:
    """The files of `module` (of a package its `__main__`) and of all it imports within the project, sorted.

    Paths are relative to `root`. A package's `__init__.py` counts unless it is empty. A module that is only named in a
    string (`"stages.train.worker"`, started as a process) counts as imported.
    """
    return _closure(_entry_files(module, root), root)


def _entry_files(module: str, root: Path) -> list[str]:
    command = f"{module}.__main__"
    return _files_of(command if _file_of(command, root) else module, root)


def meaning(text: bytes) -> str:
    """A module's syntax tree without docstrings, as text. Raises SyntaxError where it is not Python."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            # A string that is a statement of its own is a docstring, also after an attribute.
            node.body = [line for line in node.body if not _is_string(line)]
    return ast.dump(tree)


@cache
def code_sha256(module: str, root: Path = ROOT, without: tuple[str, ...] = ()) -> str:
    """The sha256 of the code of a module, read once in a process.

    `without`: beginnings of paths that do not count, nor does what only they import.
    """
    return _sha256(_closure(_entry_files(module, root), root, without), root)


def code_key(function: Callable[..., Any]) -> str:
    """Changes with anything but its arguments that the result of `function` depends on, as far as code goes.

    That is the code of its module, the versions of the libraries which that imports, and Python's version.
    """
    while isinstance(function, partial):
        function = function.func
    return _key_of_file(Path(str(sys.modules[function.__module__].__file__)))


@cache
def _key_of_file(file: Path) -> str:
    files = _closure([file.relative_to(ROOT).as_posix()] if file.is_relative_to(ROOT) else [str(file)], ROOT)
    parts = [_sha256(files, ROOT), *_library_versions(files, ROOT), platform.python_version()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _sha256(files: list[str], root: Path) -> str:
    trees = [f"{file}\n{meaning((root / file).read_bytes())}" for file in files if not file.startswith(RUNTIME)]
    return hashlib.sha256("\n".join(trees).encode()).hexdigest()


def _closure(files: list[str], root: Path, without: tuple[str, ...] = ()) -> list[str]:
    found: set[str] = set()
    todo = list(files)
    while todo:
        file = todo.pop()
        if file not in found and not file.startswith(without):
            found.add(file)
            for name in _imported_names(file, root):
                todo.extend(_files_of(name, root))
    return sorted(found)


def _files_of(name: str, root: Path) -> list[str]:
    """The files that importing a dotted name runs: its own, and `__init__.py` of each package unless it is empty."""
    parts = name.split(".")
    if parts[0] not in PACKAGES:
        return []
    packages = [_file_of(".".join([*parts[:count], "__init__"]), root) for count in range(1, len(parts) + 1)]
    files = [file for file in packages if file and (root / file).stat().st_size]
    own = _file_of(name, root)
    return [*files, own] if own else files


def _file_of(name: str, root: Path) -> str:
    file = Path(*name.split(".")).with_suffix(".py")
    return file.as_posix() if (root / file).is_file() else ""


@cache
def _imported_names(file: str, root: Path) -> frozenset[str]:
    """The dotted names that a file imports, and those of our modules that it names in strings."""
    package = ".".join(Path(file).with_suffix("").parts[:-1])
    return frozenset(_names(ast.parse((root / file).read_bytes()), package))


def _names(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                name = resolve_name("." * level + (module or ""), package)
                # What is imported from a package may be a module.
                yield from (name, *(f"{name}.{alias.name}" for alias in aliases))
            case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"), args=[named, *_]):
                # Of f"detect_secrets.plugins.{name}" the beginning.
                yield next((str(part.value) for part in ast.walk(named) if isinstance(part, ast.Constant)), "")
            case ast.Constant(value=str(text)) if _MODULE_NAME.fullmatch(text):
                yield from (text, f"{text}.__main__")


def _library_versions(files: list[str], root: Path) -> list[str]:
    computing = [file for file in files if not file.startswith(RUNTIME)]
    names = {name.split(".")[0] for file in computing for name in _imported_names(file, root) if name}
    return [f"{name} {_installed(name)}" for name in sorted(names - {*PACKAGES} - sys.stdlib_module_names)]


def _installed(name: str) -> str:
    """The version of the library that a module belongs to."""
    try:
        return version(name).split("+")[0]  # 2.13.0+cpu: the same release on other hardware
    except PackageNotFoundError:
        if find_spec(name) is None:
            return "not installed"
        # Slow, and needed only where the library has another name than its module (PyYAML).
        return " ".join(version(library) for library in packages_distributions().get(name, ()))


def _is_string(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
