"""Hashes of files: of their bytes, and of a module's syntax tree."""

import ast
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

HASH_DIGITS = 32

_MODULE_NAME = re.compile(r"stages(\.\w+)+")


def file_sha256(path: Path) -> str:
    """The sha256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class Module:
    """What is read from a file of code."""

    sha256: str
    """Of the syntax tree without docstrings, its first 32 hex digits."""
    imports: frozenset[str]
    """The dotted names that it imports, and those of our modules that it names in strings."""
    required: frozenset[str]
    """The libraries that it names in a call of `require_locked`."""


@cache
def read_module(text: bytes, file: str) -> Module:
    """Read the content of a file of code. Raises SyntaxError, or another ValueError, where it is not Python."""
    reader = _Reader(".".join(Path(file).with_suffix("").parts[:-1]))
    try:
        reader.read(ast.parse(text))
    except ImportError as error:
        raise ValueError(str(error)) from None  # a relative import that leads out of the packages
    tree = hashlib.sha256("".join(reader.parts).encode()).hexdigest()[:HASH_DIGITS]
    return Module(tree, frozenset(reader.imports), frozenset(reader.required))


class _Reader:
    """Writes a syntax tree as text, and notes what it imports, in one pass.

    `ast.dump` differs between Pythons: a new one has fields that an old one does not know. Those are empty in code that
    both can read, and nothing empty is written here. Whether a name is read or written follows from where it is.
    """

    def __init__(self, package: str) -> None:
        self.package = package
        self.parts: list[str] = []
        self.imports: set[str] = set()
        self.required: set[str] = set()

    def read(self, node: ast.AST) -> None:
        """Write a node with all that is below it."""
        kind = type(node)
        self.parts.append(f"{kind.__name__}(")
        if kind is ast.Constant:
            self._read_constant(node)  # type: ignore[arg-type]
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
                # A string that is a statement of its own is a docstring, also after an attribute.
                if not (type(item) is ast.Expr and _is_text(item.value)):
                    self._read_value(item)
                    self.parts.append(",")
            self.parts.append("]")
        else:
            # Not `repr`: which characters it escapes depends on Python's table of Unicode.
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
                # What is imported from a package may be a module.
                self.imports |= {name, *(f"{name}.{alias.name}" for alias in aliases)}
            case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"), args=[named, *_]):
                # Of f"detect_secrets.plugins.{name}" the beginning.
                self.imports.add(next(_texts(named), ""))
            case ast.Call(func=ast.Name(id="require_locked"), args=arguments):
                # A library that only some parameters need is in a conditional among the arguments.
                self.required.update(text for argument in arguments for text in _texts(argument))


def _joined(parts: list[ast.expr]) -> Iterator[ast.expr]:
    """The parts of an f-string without empty texts, which some Pythons have between others."""
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
