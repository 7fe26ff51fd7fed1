"""Small repositories for tests of the record."""

import subprocess
from pathlib import Path

IDENTITY = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]


def git(*arguments: str) -> str:
    result = subprocess.run(["git", *IDENTITY, *arguments], check=True, capture_output=True, text=True)
    return result.stdout.strip()


def commit_all() -> None:
    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-qm", "first")


def write(files: dict[str, str]) -> None:
    for path, text in files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
