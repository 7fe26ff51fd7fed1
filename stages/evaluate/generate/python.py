"""Python: the functions of a document, where a completed one ends, and whether code is valid."""

import ast
import io
import textwrap
import tokenize
import warnings
from functools import partial
from typing import TypeAlias

from stages.evaluate.generate.headers import Header, last_whole_lines
from stages.evaluate.sampling import End
from stages.formats.documents import Document

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def function_headers(document: Document, header_bytes: int) -> list[Header]:
    """Every function whose body begins on a line of its own; none if the document does not parse."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(document.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    # Lines as `ast` counts them: a form feed does not end a line.
    lines = io.StringIO(document.text, newline="").readlines()
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    return [_header(document, node, lines, header_bytes) for node in functions if _body_stands_apart(node, lines)]


def _body_stands_apart(node: Function, lines: list[str]) -> bool:
    body = node.body[0]
    return lines[body.lineno - 1].encode("utf-8")[: body.col_offset].strip() == b""


def _header(document: Document, node: Function, lines: list[str], header_bytes: int) -> Header:
    first = node.lineno - 1
    return Header(
        document=document.id,
        source=document.source,
        path=document.path,
        line=node.lineno,
        before=last_whole_lines(lines[:first], header_bytes),
        signature="".join(lines[first : _first_line(node.body[0]) - 1]).rstrip(),
    )


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def function_end(header: Header) -> End:
    """Ends a completion where a line leaves the function of this header."""
    return partial(_end, indentation(header.signature))


def _end(indent: int, text: str) -> int | None:
    """The index of the first line that is not blank and is indented by at most `indent` columns; None if none is.

    The text before the first newline belongs to the signature's line. Lines within a string or brackets, and comments
    after which the function continues, may have any indentation; comments before the line that ends the function
    belong to what follows.
    """
    start = text.find("\n") + 1
    if start == 0:
        return None
    comments = None
    for line in io.StringIO(text[start:]):
        if line.strip():
            if indentation(line) > indent:
                comments = None
            elif line.lstrip().startswith("#"):
                comments = start if comments is None else comments
            elif not _is_open(text[:start]):
                return start if comments is None else comments
        start += len(line)
    return None


def _is_open(code: str) -> bool:
    """Whether code ends within brackets or a string of several lines."""
    try:
        for _ in tokenize.generate_tokens(io.StringIO(code).readline):
            pass
    except tokenize.TokenError as error:
        return "multi-line" in str(error) or "triple-quoted" in str(error)
    except SyntaxError:
        return False
    return False


def indentation(line: str) -> int:
    """Columns before a line's first character, a tab reaching to the next multiple of eight as in Python."""
    expanded = line.expandtabs(8)
    return len(expanded) - len(expanded.lstrip(" "))


def parses(text: str) -> bool:
    """Whether a text parses as Python, its common indentation removed."""
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def compiles(text: str) -> bool:
    """Whether Python compiles a text: beyond the grammar, no `return` outside a function, no parameter name twice.

    Nothing is run.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(textwrap.dedent(text), "sample", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
