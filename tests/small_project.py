"""A small project for tests of the data stages: its own params.yaml, the real versions.yaml, a few documents."""

import copy
import shutil
from pathlib import Path
from typing import Any

import yaml

from stages.formats.documents import Document, document_id

ROOT = Path(__file__).parents[1]

FILES_SOURCE: dict[str, Any] = {
    "kind": "files",
    "globs": ["corpus"],
    "name": "mine",
    "revision": "1",
    "license": "MIT",
    "share": 1.0,
    "max_bytes": None,
}

SECTIONS: dict[str, Any] = {
    "collect": {
        "sources": [FILES_SOURCE],
        "licenses": ["MIT", "Apache-2.0"],
        "unlicensed": True,
        "max_document_bytes": 1_000_000,
        "max_bytes": None,
        "shard_bytes": 2000,
    },
    "clean": {
        "seed": 0,
        "filters": {
            "line_length_maximum": 1000,
            "line_length_mean_maximum": 100,
            "alphanumeric_share_minimum": 0.25,
            "characters_per_token_minimum": 1.5,
            "digit_share_maximum": None,
            "comment_share_minimum": None,
            "comment_share_maximum": None,
            "generated": True,
            "assignments_minimum": None,
            "config_or_test": None,
            "no_keywords_probability": None,
        },
        "words": "unicode",
        "near_duplicates": None,
        "decontamination": None,
        "masks": {"emails": False, "ip_addresses": False, "keys": False},
        "split": {"by": "document", "validation_sources": [], "validation_share": 0.3},
    },
    "tokenizer": {
        "kind": "bpe",
        "vocabulary_size": 300,
        "pattern": "gpt2",
        "training_bytes": 1_000_000,
        "folder": None,
    },
    "tokenize": {"engine": "fastokens", "parity_bytes": 10_000},
}


def changed(values: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy with some values changed: `collect__max_bytes=3` sets collect.max_bytes."""
    result = copy.deepcopy(values)
    for dotted, value in changes.items():
        *path, last = dotted.split("__")
        section = result
        for part in path:
            section = section[part]
        section[last] = value
    return result


def sections(**changes: Any) -> dict[str, Any]:
    """The data stages' sections with some values changed."""
    return changed(SECTIONS, **changes)


def write_project(folder: Path, **changes: Any) -> None:
    """Write params.yaml and versions.yaml."""
    (folder / "params.yaml").write_text(yaml.safe_dump(sections(**changes)), encoding="utf-8")
    if not (folder / "versions.yaml").exists():
        shutil.copyfile(ROOT / "versions.yaml", folder / "versions.yaml")


def function_text(number: int) -> str:
    """A small Python module, another one for each number."""
    lines = [
        f"def function_{number}_{k}(value):\n    total = value + {number * k}\n    return total\n" for k in range(5)
    ]
    return "\n\n".join(lines)


def write_corpus(folder: Path, count: int) -> None:
    """`count` Python files below `corpus/`."""
    (folder / "corpus").mkdir(exist_ok=True)
    for number in range(count):
        (folder / "corpus" / f"module_{number:03d}.py").write_text(function_text(number), encoding="utf-8")


def document(text: str, source: str = "s", path: str = "p.py") -> Document:
    """A document with that text."""
    return Document(document_id(text), source, "1", path, "MIT", text)


def folder_bytes(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path there."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
