"""Whether a change of a file can change a result: comments, formatting and docstrings cannot.

dvc.lock records only a file's md5. The text with that md5 is looked for in git's history of the file, and among the
code that earlier runs have kept.
"""

import shutil
import subprocess
from collections.abc import Iterable, Iterator
from hashlib import md5
from pathlib import Path

from stages.runtime.code import meaning

COMMITS_LOOKED_AT = 100

CODE = Path(".parrotflow/code")
"""The code that stages ran with, for later runs; without it only a remark is missing."""


def is_only_remarks(path: Path, old_md5: str) -> bool:
    """Whether the file differs from the one with that md5 in comments, formatting and docstrings alone.

    False as well where the old text is not found, or one of the two is not Python.
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


def _committed(path: Path) -> Iterator[bytes]:
    log = ["git", "log", f"--max-count={COMMITS_LOOKED_AT}", "--format=%H", "--", path.as_posix()]
    commits = subprocess.run(log, capture_output=True, check=False).stdout.decode().split()
    for commit in commits:
        show = ["git", "show", f"{commit}:./{path.as_posix()}"]
        yield subprocess.run(show, capture_output=True, check=False).stdout


def remember_code(files: Iterable[Path]) -> None:
    """Keep files by their md5, which is how dvc.lock names them."""
    CODE.mkdir(parents=True, exist_ok=True)
    for file in files:
        if file.is_file():
            kept = CODE / md5(file.read_bytes()).hexdigest()
            if not kept.exists():
                shutil.copyfile(file, kept)
