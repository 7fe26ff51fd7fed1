"""`make` in any folder: a path is quoted where the shell reads it."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.small_project import ROOT


def test_the_set_up_works_in_a_folder_whose_name_has_a_space(tmp_path: Path) -> None:
    clone = tmp_path / "my model"
    python = clone / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")  # stands for the one that installs
    python.chmod(0o755)
    shutil.copy(ROOT / "Makefile", clone)
    for lock in ("requirements.lock", "requirements-dev.lock", "requirements-gpu.lock", "pyproject.toml"):
        (clone / lock).touch()

    made = subprocess.run(
        ["make", "setup-dev", f"PYTHON={sys.executable}"], cwd=clone, capture_output=True, text=True, check=False
    )

    assert (made.returncode, made.stderr) == (0, "")
    assert (clone / ".venv" / "ready-dev").is_file()
