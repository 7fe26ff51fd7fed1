"""Small repositories for tests of the record."""

import subprocess
import tarfile
from pathlib import Path


def git(*arguments: str) -> str:
    result = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True)
    return result.stdout.strip()


def commit_all() -> None:
    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-qm", "first")


def contents(archive: tarfile.TarFile) -> dict[str, bytes]:
    """Path -> content of an archive that has nothing but files."""
    files = {entry.name: archive.extractfile(entry) for entry in archive}
    return {path: file.read() for path, file in files.items() if file}


def write(files: dict[str, str]) -> None:
    for path, text in files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
