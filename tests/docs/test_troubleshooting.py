"""A message on the page of troubleshooting is one that the code prints."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.small_project import ROOT

PAGE = (ROOT / "docs/how-to/troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^\| `(.*?)` \|", PAGE, re.MULTILINE)


def texts() -> Iterator[str]:
    """The strings of the code; a value in one reads `…`."""
    for path in (path for package in ("flows", "stages") for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


@pytest.fixture(scope="module")
def said() -> str:
    return "\n".join(texts()).replace("`", "")


@pytest.mark.parametrize("message", MESSAGES)
def test_the_code_says_so(message: str, said: str) -> None:
    pieces = [piece for piece in message.split("…") if len(piece.split()) > 1]

    assert pieces, "a message needs words of its own"
    assert re.search(r".{0,80}?".join(map(re.escape, pieces)), said), message


def test_there_are_messages() -> None:
    assert len(MESSAGES) > 10
