"""Looks whether what DVC would take from its cache is what it was when it came there.

DVC trusts a cache file that is write-protected without reading it again, so a disk that forgets would be put back as a
result. Entries that do not match their name are dropped: then DVC pulls or computes them.
"""

from collections.abc import Iterator
from hashlib import md5
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.repo import Repo

from flows.plan.graph import cached_outs

CHUNK_BYTES = 1 << 20


def drop_damaged(stage_name: str) -> list[str]:
    """Remove the damaged cache entries of a stage's outputs as they would be restored; their outputs' paths."""
    damaged = []
    with Repo(_wait_for_lock=True) as repo, repo.lock:
        for stage in repo.stage.collect(stage_name):
            for out in cached_outs(stage):
                if not (out.use_cache and out.hash_info):
                    continue
                for name in _entries(out):
                    path = Path(out.cache.oid_to_path(name))
                    if path.is_file() and _md5(path) != name.removesuffix(".dir"):
                        path.chmod(0o644)
                        path.unlink()
                        damaged.append(str(out))
    return sorted(set(damaged))


def _entries(out: object) -> Iterator[str]:
    name = out.hash_info.value  # type: ignore[attr-defined]
    yield name
    if name.endswith(".dir"):
        try:
            tree = out.get_obj()  # type: ignore[attr-defined]
        except (DvcException, OSError, ValueError):
            return
        yield from (entry.value for _, _, entry in tree or ())


def _md5(path: Path) -> str:
    digest = md5()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
