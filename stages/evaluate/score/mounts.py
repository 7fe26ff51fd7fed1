"""What a sandbox shows of this machine's files: Python, its standard library and the C libraries, read-only."""

import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from stages.runtime.entry import UserError

LIBRARIES = (Path("/lib"), Path("/usr/lib"), Path("/lib64"), Path("/usr/lib64"))
"""Where systems keep the C libraries and their loader."""


def python() -> Path:
    """The executable of Python, outside of any virtual environment."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def shown() -> list[Path]:
    """The files and folders that Python needs. No installed packages: those are hidden below them."""
    paths: list[Path] = []
    architecture = sysconfig.get_config_var("MULTIARCH")
    for folder in LIBRARIES:
        if architecture and (folder / architecture).is_dir():  # as on Debian
            paths += [folder / architecture, *sorted(folder.glob("ld-*"))]
        elif folder.is_dir():
            paths.append(folder)
    paths += [Path(sysconfig.get_path("stdlib")).resolve(), python()]
    own_libraries = Path(sys.base_prefix).resolve() / "lib"
    if own_libraries not in LIBRARIES:
        paths += [path for path in sorted(own_libraries.glob("*.so*")) if path.is_file()]
    return paths


def hidden(paths: Iterable[Path]) -> list[Path]:
    """The folders at or below `paths` that must not be seen: installed packages, the project and the home folder.

    Raises UserError where one of `paths` is the project or the home folder itself.
    """
    private = [Path.cwd(), Path(os.environ.get("HOME") or "/").resolve()]
    found: set[Path] = set()
    for path in paths:
        found.update(path.glob("*-packages"), path.glob("python*/*-packages"))
        real = path.resolve()
        if real in private:
            raise UserError(
                f"score.run_generated_code = true, but generated code can read {path}, where Python's libraries are, "
                "and it is also the project's or your home folder: move the project, or set it to false"
            )
        found.update(path / folder.relative_to(real) for folder in private if folder.is_relative_to(real))
    return [path for path in sorted(found) if not path.is_symlink() and found.isdisjoint(path.parents)]
