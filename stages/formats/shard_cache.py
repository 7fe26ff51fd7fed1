"""What a stage has computed for a shard, kept by the content it was computed from.

Lies in the ignored folder `.parrotflow/cache`, outside DVC's outs: an edit of one document costs one shard, and
deleting the folder costs time alone. A copy of the files goes out, never a link, so nobody who edits a result can
change the cache.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from stages.formats.atomic import whole_folder

CACHE = Path(".parrotflow/cache")

LIMIT_VARIABLE = "PARROTFLOW_SHARD_CACHE_GB"
DEFAULT_LIMIT_GB = 50.0


def cache_key(*parts: str) -> str:
    """One name for everything that a result hangs on, in the order given."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


def code_key(files: Iterable[str | None]) -> str:
    """A key for code: the sha256 of modules' files (`features.__file__`), so that an edit never meets old results."""
    return cache_key(*(Path(file).read_text(encoding="utf-8") for file in files if file))


def cached(stage: str, key: str, compute: Callable[[Path], None]) -> Path:
    """The folder with the files that `compute(folder)` writes: from the cache where `key` is known."""
    entry = CACHE / stage / key[:2] / key
    if not entry.is_dir():
        _fill(entry, compute)
    os.utime(entry)
    return entry


def _fill(entry: Path, compute: Callable[[Path], None]) -> None:
    entry.parent.mkdir(parents=True, exist_ok=True)
    # Two workers may compute the same entry at once; each has a place of its own, and the same bytes.
    own = entry.with_name(f"{entry.name}.{os.getpid()}")
    with whole_folder(own) as folder:
        compute(folder)
    try:
        own.rename(entry)
    except OSError:
        shutil.rmtree(own)
        if not entry.is_dir():
            raise


def drop_unused(stage: str) -> None:
    """Delete a stage's entries that were unused for longest, down to `PARROTFLOW_SHARD_CACHE_GB` (default 50)."""
    limit = float(os.environ.get(LIMIT_VARIABLE) or DEFAULT_LIMIT_GB) * 1e9
    entries = [(path.stat().st_mtime_ns, path) for path in (CACHE / stage).glob("??/*") if path.is_dir()]
    total = 0
    for _, entry in sorted(entries, reverse=True):
        total += sum(file.stat().st_size for file in entry.iterdir())
        if total > limit:
            shutil.rmtree(entry, ignore_errors=True)
