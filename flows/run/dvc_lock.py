"""dvc.lock in the order of dvc.yaml: stages that run side by side would else be entered as they finish."""

from pathlib import Path

from ruamel.yaml import YAML

from stages.runtime.atomic import atomic_write

DVC_FILE = Path("dvc.yaml")
LOCK_FILE = Path("dvc.lock")


def sort_lock_file(dvc_file: Path = DVC_FILE, lock_file: Path = LOCK_FILE) -> None:
    """Bring the stages of dvc.lock into dvc.yaml's order; nothing is written where they are in order already.

    Stages of `foreach` and `matrix` (NAME@ITEM) follow their template's place.
    """
    if not lock_file.exists():
        return
    places = {name: place for place, name in enumerate(YAML(typ="safe").load(dvc_file)["stages"])}
    text = lock_file.read_text(encoding="utf-8")
    blocks = _blocks(text)
    ordered = sorted(blocks, key=lambda name: (places.get(name.split("@")[0], len(places)), name))
    if ordered == list(blocks):
        return
    head = text[: text.index("stages:\n") + len("stages:\n")]
    atomic_write(lock_file, head + "".join(blocks[name] for name in ordered))


def _blocks(text: str) -> dict[str, str]:
    blocks: dict[str, str] = {}
    name = ""
    for line in text[text.index("stages:\n") + len("stages:\n") :].splitlines(keepends=True):
        if line.startswith("  ") and line[2] not in " -#":
            name = line.strip().removesuffix(":").strip("'\"")
            blocks[name] = ""
        blocks[name] += line
    return blocks
