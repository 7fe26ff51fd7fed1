"""The folder that a command works in: the project's root, also when it is called from a folder inside the project."""

import os
from pathlib import Path

STATE_DIR = Path(".parrotflow")
"""What runs leave on this machine; it is not shared."""


def enter_project() -> None:
    """Go to the project's root, and let its `.parrotflow/` ignore itself in git. Outside a project nothing is made."""
    here = Path.cwd()
    root = next((folder for folder in (here, *here.parents) if (folder / ".dvc").is_dir()), None)
    if root is None:
        return
    os.chdir(root)
    ignore = STATE_DIR / ".gitignore"
    if not ignore.exists():
        STATE_DIR.mkdir(exist_ok=True)
        ignore.write_text("*\n", encoding="utf-8")
