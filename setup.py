"""Adds the files of `project_files.txt` to the wheel: `parrotflow new` copies them into a new project."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PROJECT_FILES = Path("flows/project/project_files.txt")
"""The names, a line each; `flows/project/new.py` reads it too."""


class BuildWithProjectFiles(build_py):
    """Builds the packages, and copies the files into flows/project/files."""

    def run(self) -> None:
        """As build_py."""
        super().run()
        if self.editable_mode:
            return
        place = Path(self.build_lib) / "flows/project/files"
        for name in PROJECT_FILES.read_text(encoding="utf-8").split():
            target = place / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if Path(name).is_dir():
                shutil.copytree(name, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(name, target)


setup(cmdclass={"build_py": BuildWithProjectFiles})
