"""Temporary workspaces of DVC's experiments, from which nothing is published."""

from pathlib import Path

EXPERIMENTS = (".dvc", "tmp", "exps")
"""Below this folder are the workspaces of `dvc exp run --temp` and `--queue`, which DVC deletes afterwards."""


def in_temporary_workspace(folder: Path) -> bool:
    """Whether a folder is in a temporary workspace of a DVC experiment."""
    parts = folder.absolute().parts
    return any(parts[start : start + len(EXPERIMENTS)] == EXPERIMENTS for start in range(len(parts)))
