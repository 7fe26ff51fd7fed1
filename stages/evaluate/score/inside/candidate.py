"""The process of a candidate: runs its program, then does what the tests ask for. It sees neither tests nor verdict."""

import operator
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from stages.evaluate.score.inside.peer import Peer

NAME = "candidate"
"""The module that the program is; not `__main__`, so that what it does only as a script is left out."""


def run_candidate(program: str, connection: Any) -> None:
    """Run the program as a module, tell how that ended, and answer until the tests have ended."""
    module = types.ModuleType(NAME)
    sys.modules[NAME] = module  # dataclasses look their module up

    def find(name: str) -> Any:
        try:
            return vars(module)[name]
        except KeyError:
            raise NameError(f"name {name!r} is not defined") from None

    operations: dict[str, Callable[..., Any]] = {
        "find": find,
        "call": lambda function, arguments, named: function(*arguments, **named),
        "getattr": getattr,
        "setattr": setattr,
        "getitem": operator.getitem,
        "iter": iter,
        "next": _next,
        "len": len,
        "bool": bool,
        "str": str,
        "repr": repr,
        "contains": operator.contains,
    }
    peer = Peer(connection, operations, may_refer=lambda value: True)
    if peer.run(lambda: exec(compile(program, f"<{NAME}>", "exec", dont_inherit=True), vars(module))):
        peer.answer_until_the_end()


def _next(iterator: Iterator[Any]) -> list[Any]:
    for item in iterator:
        return [item]
    return []
