"""Small expressions in an experiment's file, for formulas and claims: Python's syntax, of which little is allowed.

Numbers, texts, names, arithmetic, comparisons, `and`, `or`, `not`, calls of given functions, and given fields of what
they return. What is not in that list is refused before anything is evaluated, so that a file cannot run code.
"""

import ast
from collections.abc import Collection, Mapping
from typing import Any

ALLOWED = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Call, ast.keyword, ast.List, ast.Load, ast.Name)
OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.USub, ast.Not, ast.And, ast.Or)
COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def parse(text: str, names: Collection[str], functions: Collection[str] = (), fields: Collection[str] = ()) -> ast.expr:
    """The expression, with everything in it allowed. Raises ValueError that says what is not."""
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"not an expression: {error.msg}") from None
    called = {id(node.func) for node in ast.walk(body) if isinstance(node, ast.Call)}
    for node in ast.walk(body):
        if isinstance(node, ast.Name):
            known, what = (functions, "function") if id(node) in called else (names, "name")
            _require(node.id, known, what)
        elif isinstance(node, ast.Attribute):
            _require(node.attr, fields, "field")
        elif isinstance(node, ast.Constant):
            if type(node.value) not in (int, float, str):
                raise ValueError(f"{node.value!r} is neither a number nor a text")
        elif not isinstance(node, ALLOWED + OPERATORS + COMPARISONS):
            raise ValueError(f"`{type(node).__name__}` is not allowed here")
    return body


def parse_formula(text: str, names: Collection[str]) -> ast.expr:
    """As `parse`, of arithmetic over numbers: without texts and lists."""
    body = parse(text, names)
    for node in ast.walk(body):
        if isinstance(node, ast.List) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            raise ValueError(f"`{ast.unparse(node)}` is no number")
    return body


def parse_condition(text: str, *allowed: Collection[str]) -> ast.expr:
    """As `parse`, of what is true or false: comparisons, joined by `and`, `or` and `not`."""
    body = parse(text, *allowed)
    _require_comparisons(body)
    return body


def _require_comparisons(node: ast.expr) -> None:
    """A number would count as true, whatever the runs gave."""
    if isinstance(node, ast.BoolOp):
        for operand in node.values:
            _require_comparisons(operand)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        _require_comparisons(node.operand)
    elif not isinstance(node, ast.Compare):
        raise ValueError(f"`{ast.unparse(node)}` is no comparison; compare it, for example with `< 0`")


def _require(name: str, known: Collection[str], what: str) -> None:
    if name not in known:
        raise ValueError(f"no {what} `{name}`; there are {', '.join(known) or 'none'}")


def evaluate(body: ast.expr, values: Mapping[str, Any]) -> Any:
    """The value of a parsed expression, given that of each name and function."""
    return eval(compile(ast.Expression(body), "<expression>", "eval"), {"__builtins__": {}}, dict(values))


def names_in(body: ast.expr) -> set[str]:
    """The names that an expression uses; not those of functions."""
    called = {id(node.func) for node in ast.walk(body) if isinstance(node, ast.Call)}
    return {node.id for node in ast.walk(body) if isinstance(node, ast.Name) and id(node) not in called}


def first_arguments(body: ast.expr) -> list[tuple[str, str]]:
    """Of each call the function and what its first argument names, quoted or not; empty where it names nothing."""
    found = []
    for node in ast.walk(body):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            first = node.args[0] if node.args else None
            name = first.id if isinstance(first, ast.Name) else getattr(first, "value", "")
            found.append((node.func.id, name if isinstance(name, str) else ""))
    return found
