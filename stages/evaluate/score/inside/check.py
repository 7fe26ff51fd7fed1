"""The process of the tests: the assertions run here, on plain values, and the verdict is written here.

No code of the candidate is in this process: its functions are called in theirs (`peer.py`).
"""

import ast
import builtins
import functools
import sys
import types
from contextlib import suppress
from typing import Any

from stages.evaluate.score.inside.peer import BrokenPeerError, Peer

FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)
"""What a test may pass to a candidate besides plain data: it is called here."""


def check(context: str, test: str, entry_point: str, connection: Any) -> tuple[str, str]:
    """The result of a candidate that waits at the connection's other end, and the type of its exception.

    `context` is the problem's own code, whose functions the tests may use; an `entry_point` is handed to the tests'
    `check`, as in HumanEval. Results: passed, assertion, exception, syntax, memory, died, refused.
    """
    peer = Peer(connection, {"call": _call}, may_refer=lambda value: isinstance(value, FUNCTIONS))
    try:
        peer.reply([])  # the program has run
    except SyntaxError as error:
        return "syntax", type(error).__name__
    except BaseException as error:
        return _result(error)
    try:
        _run(context, test, entry_point, peer)
    except BaseException as error:
        if not peer.broken:
            return _result(error)
    # Also if a test caught it: one that expects an exception does not expect a dead process.
    return (peer.broken, "") if peer.broken else ("passed", "")


def _run(context: str, test: str, entry_point: str, peer: Peer) -> None:
    namespace: dict[str, Any] = {"__name__": "check"}
    exec(_compiled(context), namespace)
    for name in [entry_point] if entry_point else sorted(_free_names(test)):
        try:
            namespace[name] = peer.request("find", name)
        except NameError:
            if entry_point:
                raise
            # A parameter of the tests' own functions, say; or it is missing, and then the tests say so.
    exec(compile(test, "<test>", "exec", dont_inherit=True), namespace)
    if entry_point:
        namespace["check"](namespace[entry_point])


def _compiled(context: str) -> Any:
    """A prompt's code. It may end anywhere: with a function's header, say, without a body.

    What does not compile then is left out from the end, line by line: whether the whole program does is told by the
    candidate's process.
    """
    lines = context.rstrip().splitlines(keepends=True)
    indent = lines[-1][: len(lines[-1]) - len(lines[-1].lstrip())] if lines else ""
    beginnings = ("".join(lines[:count]) for count in range(len(lines) - 1, -1, -1))
    for code in (context, f"{''.join(lines)}\n{indent}    pass\n", *beginnings):
        with suppress(SyntaxError):
            return compile(code, "<prompt>", "exec", dont_inherit=True)
    raise AssertionError("an empty program compiles")


def _free_names(test: str) -> set[str]:
    """The names that assertions use and do not define, among them the candidate's; a module's is never that."""
    names = [node for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Name)]
    stored = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    return {node.id for node in names} - stored - vars(builtins).keys() - sys.stdlib_module_names


def _call(function: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
    if not isinstance(function, FUNCTIONS):
        raise TypeError("only functions that a test handed over can be called")
    return function(*arguments, **named)


def _result(error: BaseException) -> tuple[str, str]:
    match error:
        case BrokenPeerError():
            return error.result, ""
        case AssertionError():
            return "assertion", ""
        case MemoryError():
            return "memory", ""
    return "exception", type(error).__name__
