"""Whether a change of code can change a result: comments, formatting and docstrings cannot.

dvc.lock knows of a file only its md5. The text that belongs to it is looked for in git's history of the file, and among
the code that earlier runs have kept.
"""

import ast
import subprocess
from collections.abc import Iterator
from hashlib import md5
from pathlib import Path

from flows.plan.history import CODE

COMMITS_LOOKED_AT = 100


def is_only_remarks(path: Path, old_md5: str) -> bool:
    """Whether the file differs from the one with that md5 in comments, formatting and docstrings alone.

    False as well where the old text is not found, or one of both is no Python.
    """
    old = old_text(path, old_md5)
    if old is None or not path.is_file():
        return False
    try:
        return meaning(old) == meaning(path.read_bytes())
    except (SyntaxError, ValueError):
        return False


def old_text(path: Path, old_md5: str) -> bytes | None:
    """The content with that md5, if it is known."""
    kept = CODE / old_md5
    if kept.is_file():
        return kept.read_bytes()
    return next((text for text in _committed(path) if md5(text).hexdigest() == old_md5), None)


def meaning(text: bytes) -> str:
    """A module's syntax tree without docstrings, as text."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            # A string that stands alone is a docstring, also after an attribute.
            node.body = [line for line in node.body if not _is_string(line)]
    return ast.dump(tree)


def _is_string(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)


def _committed(path: Path) -> Iterator[bytes]:
    log = ["git", "log", f"--max-count={COMMITS_LOOKED_AT}", "--format=%H", "--", path.as_posix()]
    commits = subprocess.run(log, capture_output=True, check=False).stdout.decode().split()
    for commit in commits:
        show = ["git", "show", f"{commit}:./{path.as_posix()}"]
        yield subprocess.run(show, capture_output=True, check=False).stdout
