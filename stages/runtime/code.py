"""Defines "the code" of a module, and when it has changed; `stages.runtime.stage_code` applies it to stages.

The code of a module is its import closure within the project: the module, every module that it imports, and so on. Two
versions of a file are equal if their syntax trees without docstrings are, so comments and formatting have no effect.
"""

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import resolve_name
from pathlib import Path

from stages.runtime.errors import UserError

ROOT = Path(__file__).parents[2]
"""The folder of the packages `stages` and `flows`."""

RUNTIME = "stages/runtime/"
"""How stages run, not what they compute. DVC stages depend on it, but the keys of shards and checkpoints do not, or a
clearer message there would discard them."""

PACKAGES = ("stages", "flows")
"""Our packages; any other module is from a library or Python."""

_MODULE_NAME = re.compile(r"stages(\.\w+)+")


class CodeFiles:
    """The files of code below a folder, each read once, and their imports."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self._modules: dict[str, Module] = {}
        self._imported: dict[str, list[str]] = {}
        self._found: dict[str, str] = {}

    def module(self, file: str) -> "Module":
        """Read a file. Raises UserError if it is not Python."""
        if file not in self._modules:
            try:
                self._modules[file] = read_module((self.root / file).read_bytes(), file)
            except (SyntaxError, ValueError) as error:
                line = f" line {error.lineno}:" if isinstance(error, SyntaxError) else ""
                raise UserError(f"{file}:{line} {getattr(error, 'msg', error)}; correct it first") from None
        return self._modules[file]

    def closure_of(self, module: str) -> list[str]:
        """The sorted files, relative to the root, of `module` or its `__main__` and of everything it imports.

        A package's `__init__.py` counts unless it is empty. A module named in a string (`"stages.train.worker"`,
        started as a process) counts as imported; `import_module(f"stages.clean.filters.{name}")` imports every module
        of the package.
        """
        command = f"{module}.__main__"
        files: set[str] = set()
        todo = self._files_of(command if self._file_of(command) else module)
        while todo:
            file = todo.pop()
            if file not in files:
                files.add(file)
                todo += self._imported_by(file)
        return sorted(files)

    def libraries(self, files: Iterable[str]) -> set[str]:
        """The modules outside of the project that the files, except those of `stages/runtime`, import: `yaml`, ..."""
        names = {name.partition(".")[0] for file in computing(files) for name in self.module(file).imports}
        return names - {"", *PACKAGES}

    def _imported_by(self, file: str) -> list[str]:
        if file not in self._imported:
            names = self.module(file).imports
            self._imported[file] = [needed for name in names for needed in self._files_of(name)]
        return self._imported[file]

    def _files_of(self, name: str) -> list[str]:
        """The files that importing a dotted name runs: its own, and each package's `__init__.py` unless it is empty.

        A name that ends with a dot means all modules of the package: the rest of the name is known only at run time.
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
        return [*files, *filter(None, [self._file_of(name)])]

    def _file_of(self, name: str) -> str:
        if name not in self._found:
            file = f"{name.replace('.', '/')}.py"
            self._found[name] = file if (self.root / file).is_file() else ""
        return self._found[name]


def computing(files: Iterable[str]) -> list[str]:
    """The files without those of `stages/runtime`."""
    return [file for file in files if not file.startswith(RUNTIME)]


def installed(library: str) -> str | None:
    """The installed version of a library; None if it is not installed."""
    try:
        return version(library).split("+")[0]  # 2.13.0+cpu: the same release on other hardware
    except PackageNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Module:
    """The facts read from a file of code."""

    sha256: str
    """The first 32 hex digits of the hash of the syntax tree without docstrings."""
    imports: frozenset[str]
    """The dotted names of its imports, and of our modules named in strings."""
    required: frozenset[str]
    """The libraries in calls of `require_locked`."""


@cache
def read_module(text: bytes, file: str) -> Module:
    """Read the content of a file of code. Raises SyntaxError or ValueError if it is not valid Python."""
    reader = _Reader(".".join(Path(file).with_suffix("").parts[:-1]))
    try:
        reader.read(ast.parse(text))
    except ImportError as error:
        raise ValueError(str(error)) from None  # a relative import beyond the top-level package
    tree = hashlib.sha256("".join(reader.parts).encode()).hexdigest()[:32]
    return Module(tree, frozenset(reader.imports), frozenset(reader.required))


class _Reader:
    """Writes a syntax tree as text and collects its imports, in one pass.

    `ast.dump` differs between versions of Python, because newer ones add fields. In code that both can read these are
    empty, so empty fields are omitted here. `ctx` is omitted too, as it follows from the position.
    """

    def __init__(self, package: str) -> None:
        self.package = package
        self.parts: list[str] = []
        self.imports: set[str] = set()
        self.required: set[str] = set()

    def read(self, node: ast.AST) -> None:
        """Write a node and its descendants."""
        kind = type(node)
        self.parts.append(f"{kind.__name__}(")
        if isinstance(node, ast.Constant):
            self._read_constant(node)
        else:
            if kind in NOTED:
                self._note(node)
            for name in node._fields:
                value = getattr(node, name, None)
                if isinstance(node, ast.JoinedStr):
                    value = list(_joined(node.values))
                if value is not None and value != [] and name != "ctx":
                    self.parts.append(f"{name}=")
                    self._read_value(value)
        self.parts.append(")")

    def _read_value(self, value: object) -> None:
        if isinstance(value, ast.AST):
            self.read(value)
        elif isinstance(value, list):
            self.parts.append("[")
            for item in value:
                # A string as a statement is a docstring, also after an attribute.
                if not (type(item) is ast.Expr and _is_text(item.value)):
                    self._read_value(item)
                    self.parts.append(",")
            self.parts.append("]")
        else:
            # Not `repr`, which escapes different characters in different versions of Python.
            self.parts.append(f"{value!a} ")

    def _read_constant(self, node: ast.Constant) -> None:
        self.parts.append(f"{node.value!a}{node.kind or ''}")
        if isinstance(node.value, str) and _MODULE_NAME.fullmatch(node.value):
            self.imports |= {node.value, f"{node.value}.__main__"}

    def _note(self, node: ast.AST) -> None:
        match node:
            case ast.Import(names=aliases):
                self.imports.update(alias.name for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                name = resolve_name("." * level + (module or ""), self.package)
                # A name imported from a package may be a module.
                self.imports |= {name, *(f"{name}.{alias.name}" for alias in aliases)}
            case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"), args=[named, *_]):
                # The beginning of an f-string such as f"detect_secrets.plugins.{name}".
                self.imports.add(next(_texts(named), ""))
            case ast.Call(func=ast.Name(id="require_locked"), args=arguments):
                # Arguments may contain conditionals, for libraries that only some parameters need.
                self.required.update(text for argument in arguments for text in _texts(argument))


def _joined(parts: list[ast.expr]) -> Iterator[ast.expr]:
    """Yield the parts of an f-string; texts, which versions of Python split differently, are joined."""
    text = ""
    for part in parts:
        if isinstance(part, ast.Constant):
            text += str(part.value)
            continue
        if text:
            yield ast.Constant(text)
        text = ""
        yield part
    if text:
        yield ast.Constant(text)


NOTED = (ast.Import, ast.ImportFrom, ast.Call)


def _texts(node: ast.AST) -> Iterator[str]:
    return (inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant) and isinstance(inner.value, str))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
