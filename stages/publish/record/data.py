"""Lists the data that a revision was made from: sources of documents, and the files that stages depend on."""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from configparser import ConfigParser, Error
from pathlib import Path
from typing import Any

from stages.formats.revision.lock import Stages, folder_md5
from stages.formats.revision.provenance import MOST_FILES, Amount, Dependency, InputListing, Place, Source
from stages.formats.splits import SPLITS
from stages.formats.tokens import TOKENS, TokenStore
from stages.publish.lock import outside_deps, recorded_section
from stages.publish.record.git import files_of_dvc, printable, public_url
from stages.runtime.atomic import file_md5, file_sha256
from stages.runtime.stage_code import FOLDER

DVC_CONFIGS = (Path(".dvc/config"), Path(".dvc/config.local"))
"""Later ones win."""

STANDARD_LIBRARY = "standard_library"


def list_inputs(stages: Stages, places: Mapping[str, Place], *, inside: bool) -> InputListing:
    """The listing. `stages` are the entries of dvc.lock that led to the revision.

    `places`: where the files are that the commit or the source archive has. `inside`: whether the revision holds the
    files that neither of them has.
    """
    return InputListing(
        sources=list(sources(recorded_section(stages, "collect").get("sources", []))),
        dependencies=[
            dependency(dep, places, inside=inside)
            for dep in outside_deps(stages)
            if not dep["path"].startswith(("stages/", "flows/", f"{FOLDER}/"))
        ],
        remote=dvc_remote(),
    )


def sources(asked: list[dict[str, Any]]) -> Iterator[Source]:
    """What was tokenized, by source and revision; `asked` is `collect.sources`."""
    found: dict[tuple[str, str], list[tuple[str, str, int]]] = defaultdict(list)
    for split in SPLITS:
        for info in TokenStore(TOKENS / split).document_infos():
            found[info["source"], info["revision"]].append((info["id"], info["license"], info["bytes"]))
    for (name, revision), documents in sorted(found.items()):
        licenses: dict[str, list[int]] = defaultdict(list)
        for _, license, size in documents:
            licenses[license].append(size)
        kind, where = origin(name, revision, asked)
        yield Source(
            name=name,
            revision=revision,
            kind=kind,
            documents=len(documents),
            bytes=sum(size for *_, size in documents),
            sha256=hashlib.sha256("".join(f"{id}\n" for id, *_ in sorted(documents)).encode()).hexdigest(),
            licenses={name: Amount(documents=len(sizes), bytes=sum(sizes)) for name, sizes in sorted(licenses.items())},
            places=where,
        )


def origin(name: str, revision: str, asked: list[dict[str, Any]]) -> tuple[str, list[Place]]:
    """The kind of a source and where its bytes are. Rows may name sources of their own, of which that is not known.

    The fields say where: a new kind that has `globs` or a `repository` is located without being known here.
    """
    for source in asked:
        match source:
            case {"kind": "packages", "names": names} if name in names:
                return "packages", [Place(kind="package", address=f"{name}=={revision}")]
            case {"kind": "standard_library"} if name == STANDARD_LIBRARY:
                return "standard_library", [Place(kind="package", address=f"python=={revision}")]
            case {"kind": kind, "name": named, "repository": repository} if name == named:
                on_hub = not Path(repository).is_dir()
                return kind, [Place(kind="hub", address=f"{repository}@{revision}") if on_hub else Place(kind="local")]
            case {"kind": kind, "name": named, "globs": globs} if name == named:
                return kind, [located(pattern) for pattern in globs]
            case {"kind": kind, "name": named} if name == named:
                return kind, []
    return "", []


def located(pattern: str) -> Place:
    """Where the files of a pattern are."""
    if "://" in pattern:
        return Place(kind="url", address=public_url(pattern))
    # A path outside of the project says where things are on this machine.
    return Place(kind="local") if Path(pattern).is_absolute() else Place(kind="local", address=pattern)


def dependency(dep: Mapping[str, Any], places: Mapping[str, Place], *, inside: bool) -> Dependency:
    """One entry of dvc.lock, with the files' hashes and places."""
    if "://" in dep["path"]:
        return remote_dependency(dep)
    path = Path(dep["path"])
    hashes = hashes_of(path)
    edited = name_of(path, hashes) != dep.get("md5")
    known = {places.get(file.as_posix(), Place(kind="record" if inside else "local")) for file in hashes}
    return Dependency(
        path=dep["path"],
        md5=dep.get("md5", ""),
        bytes=dep.get("size", 0),
        files={} if edited else {printable(str(file)): file_sha256(file) for file in list(hashes)[:MOST_FILES]},
        not_listed=0 if edited else max(0, len(hashes) - MOST_FILES),
        edited=edited,
        places=[Place(kind="local")] if edited else sorted(known, key=lambda place: place.kind),
    )


def remote_dependency(dep: Mapping[str, Any]) -> Dependency:
    """A dependency that is at a URL, which DVC names by what the server says of it."""
    url = public_url(dep["path"]) or "a URL"
    name = dep.get("md5") or dep.get("etag") or dep.get("checksum") or ""
    place = Place(kind="url", address=url)
    return Dependency(path=url, md5=name, bytes=dep.get("size", 0), files={}, not_listed=0, places=[place])


def hashes_of(path: Path) -> dict[Path, str]:
    """File -> its md5, sorted, of a file or a folder."""
    return {file: file_md5(file) for file in ([path] if path.is_file() else files_of_dvc(path))}


def md5_of_dvc(path: Path) -> str:
    """What DVC names the content of a file or folder by."""
    return name_of(path, hashes_of(path))


def name_of(path: Path, hashes: Mapping[Path, str]) -> str:
    """Of a file its md5, of a folder that of its listing."""
    return hashes[path] if path in hashes else folder_md5(listing_of(path, hashes))


def listing_of(folder: Path, hashes: Mapping[Path, str]) -> dict[str, str]:
    """File of a folder -> its md5, by its path there."""
    return {file.relative_to(folder).as_posix(): md5 for file, md5 in hashes.items()}


def dvc_remote() -> str | None:
    """The URL of the default remote, without credentials."""
    config = ConfigParser(interpolation=None)
    try:
        config.read(DVC_CONFIGS, encoding="utf-8")
    except Error:
        return None
    name = config.get("core", "remote", fallback=None)
    return public_url(config.get(f"'remote \"{name}\"'", "url", fallback="")) if name else None
