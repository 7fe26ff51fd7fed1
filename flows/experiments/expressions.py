"""Small expressions in an experiment's file, for formulas and claims: Python's syntax, of which little is allowed.

Numbers, texts, names, arithmetic, comparisons, `and`, `or`, `not`, calls of given functions, and given fields of what
they return. What is not in that list is refused before anything is evaluated, so that a file cannot run code.

The condition of a claim is made of comparisons of numbers of the runs:

    runs(METRIC, AXIS="LEVEL", ...)                     .mean .sd .low .high .n of the seeds
    difference(METRIC, AXIS=["LEVEL", "BASELINE"], ...) the same of the paired differences, and .p
    fit(NAME)                                           .a .b .c, and .b_low .b_high, the interval of the exponent

What has no answer in the runs, such as a comparison of two numbers of the file, is refused before anything runs.
"""

import ast
from collections.abc import Collection, Mapping
from typing import Any

ALLOWED = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Call, ast.keyword, ast.List, ast.Load, ast.Name)
OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.USub, ast.Not, ast.And, ast.Or)
COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)

_OF_SEEDS = ("mean", "sd", "low", "high", "n")

FIELDS: Mapping[str, tuple[str, ...]] = {
    "runs": _OF_SEEDS,
    "difference": (*_OF_SEEDS, "p"),
    "fit": ("a", "b", "c", "b_low", "b_high"),
}
"""Each function with the fields of what it returns."""


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


def parse_condition(text: str, metrics: Collection[str], fits: Collection[str]) -> ast.expr:
    """The condition, with everything in it allowed. Raises ValueError that says what is not."""
    fields = {field for of_function in FIELDS.values() for field in of_function}
    body = parse(text, [*metrics, *fits], FIELDS, sorted(fields))
    _require_condition(body, metrics, fits)
    return body


def calls_in(body: ast.expr) -> list[ast.Call]:
    """The calls of a condition."""
    return [node for node in ast.walk(body) if isinstance(node, ast.Call)]


def _require_condition(node: ast.expr, metrics: Collection[str], fits: Collection[str]) -> None:
    match node:
        case ast.BoolOp(values=operands):
            for operand in operands:
                _require_condition(operand, metrics, fits)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            _require_condition(operand, metrics, fits)
        case ast.Compare(left=left, comparators=others):
            for operand in (left, *others):
                _require_number(operand, metrics, fits)
            if not calls_in(node):
                raise ValueError(f"`{ast.unparse(node)}` asks nothing of the runs")
        case _:  # a number would always count as true
            raise ValueError(f"`{ast.unparse(node)}` is no comparison; compare it, for example with `< 0`")


def _require_number(node: ast.expr, metrics: Collection[str], fits: Collection[str]) -> None:
    match node:
        case ast.Attribute(value=ast.Call(func=ast.Name(id=function)) as call, attr=field):
            if field not in FIELDS[function]:
                raise ValueError(f"{function}(...) has no `.{field}`; there are {', '.join(FIELDS[function])}")
            _require_call(function, call, fits if function == "fit" else metrics)
        case ast.BinOp(left=left, right=right):
            _require_number(left, metrics, fits)
            _require_number(right, metrics, fits)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            _require_number(operand, metrics, fits)
        case ast.Constant(value=int() | float()):
            pass
        case _:
            raise ValueError(f"`{ast.unparse(node)}` is no number; one of the runs is `runs(METRIC, ...).mean`")


def _require_call(function: str, call: ast.Call, known: Collection[str]) -> None:
    """The arguments: a name, then levels; of a difference one axis has two."""
    what = "fit" if function == "fit" else "metric"
    match call.args:
        case [ast.Name(id=name)] | [ast.Constant(value=str(name))]:
            pass
        case _:
            raise ValueError(f"{function}: give one {what} first; there are {', '.join(known) or 'none'}")
    if name not in known:
        raise ValueError(f"{function}: no {what} `{name}`; there are {', '.join(known) or 'none'}")
    pairs = 0
    for keyword in call.keywords:
        match keyword.value:
            case ast.Constant(value=str()) if keyword.arg and function != "fit":
                pass
            case ast.List(elts=[ast.Constant(value=str(own)), ast.Constant(value=str(base))]) if (
                keyword.arg and function == "difference" and own != base
            ):
                pairs += 1
            case _:
                raise ValueError(f"`{ast.unparse(call)}`: {_allowed(function)}")
    if function == "difference" and not pairs:
        raise ValueError(f"`{ast.unparse(call)}`: {_allowed(function)}")


def _allowed(function: str) -> str:
    return {
        "runs": 'levels are texts, as in `recipe="b"`',
        "difference": 'two different levels of an axis are compared, as in `recipe=["b", "a"]`; others are texts',
        "fit": "give nothing but its name",
    }[function]
