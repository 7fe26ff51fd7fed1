"""dvc.lock, read and put in the order of dvc.yaml: stages that run side by side are else entered as they finish."""

from pathlib import Path
from typing import Any

import yaml
from dvc.utils.serialize import load_yaml

from stages.runtime.atomic import atomic_write

DVC_FILE = Path("dvc.yaml")
LOCK_FILE = "dvc.lock"
HEAD = "stages:\n"


def lock_file_of(dvc_file: Path) -> Path:
    """Each dvc.yaml has a dvc.lock of its own in its folder."""
    return dvc_file.with_name(LOCK_FILE)


def located(stage: str) -> tuple[Path, str]:
    """The dvc.yaml that a stage is in and its name there: `more/dvc.yaml:copy`, or just `copy` of the root's."""
    file, _, name = stage.rpartition("dvc.yaml:")
    return Path(f"{file}dvc.yaml"), name


def remove_empty_lock_files(folder: Path = Path()) -> list[Path]:
    """Remove each dvc.lock that is empty, and return them.

    Plain `dvc repro` writes it in place, so a kill can leave it empty; DVC then refuses every command. Without it each
    stage counts as never run, and what DVC's run-cache holds is restored.
    """
    there = [*folder.glob(LOCK_FILE), *folder.glob(f"*/{LOCK_FILE}")]
    empty = [file for file in there if file.is_file() and not file.stat().st_size]
    for file in empty:
        file.unlink()
    return empty


def recorded(stage: str) -> dict[str, Any] | None:
    """A stage's entry in dvc.lock, read as DVC does: 1e-08 is a number."""
    dvc_file, name = located(stage)
    lock_file = lock_file_of(dvc_file)
    stages = (load_yaml(str(lock_file)) or {}).get("stages") if lock_file.exists() else None
    entry: dict[str, Any] | None = (stages or {}).get(name)
    return entry


def forget(stage: str) -> None:
    """Take a stage out of dvc.lock, so that it counts as never run."""
    dvc_file, name = located(stage)
    lock_file = lock_file_of(dvc_file)
    head, blocks = blocks_of(lock_file.read_text(encoding="utf-8"))
    blocks.pop(name, None)
    atomic_write(lock_file, head + "".join(blocks.values()))


def sort_lock_file(dvc_file: Path = DVC_FILE) -> None:
    """Bring the stages of the dvc.lock next to `dvc_file` into its order; nothing is written where they are in order.

    Stages of `foreach` and `matrix` (NAME@ITEM) have the position of their template.
    """
    lock_file = lock_file_of(dvc_file)
    if not lock_file.exists() or not dvc_file.exists():
        return
    names = (yaml.safe_load(dvc_file.read_bytes()) or {}).get("stages") or {}
    positions = {name: position for position, name in enumerate(names)}
    head, blocks = blocks_of(lock_file.read_text(encoding="utf-8"))
    ordered = sorted(blocks, key=lambda name: (positions.get(name.split("@")[0], len(positions)), name))
    if ordered != list(blocks):
        atomic_write(lock_file, head + "".join(blocks[name] for name in ordered))


def blocks_of(text: str) -> tuple[str, dict[str, str]]:
    """The text up to the stages, and each stage's own lines."""
    start = text.index(HEAD) + len(HEAD) if HEAD in text else len(text)
    blocks: dict[str, str] = {}
    name = ""
    for line in text[start:].splitlines(keepends=True):
        if line.startswith("  ") and line[2:3] not in " -#\n":  # which may end there, cut off
            name = line.strip().removesuffix(":").strip("'\"")
            blocks[name] = ""
        if name:
            blocks[name] += line
    return text[:start], blocks
