"""The folder that a command works in: the project's root, also when it is called from a folder inside the project."""

import os
from pathlib import Path

from stages.runtime.entry import private_state_dir


def enter_project() -> None:
    """Go to the project's root, and let its `.parrotflow/` ignore itself in git. Outside a project nothing is made."""
    here = Path.cwd()
    root = next((folder for folder in (here, *here.parents) if (folder / ".dvc").is_dir()), None)
    if root is None:
        return
    os.chdir(root)
    ignore = private_state_dir() / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
