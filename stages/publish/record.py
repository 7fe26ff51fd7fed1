"""Gathers the record of a revision: what made it, as far as dvc.lock, git and the training say.

Everything here is observed and no dependency of the stage: a commit that changes no input publishes nothing anew. No
timestamps, no paths of this machine, no credentials; the order of everything is fixed.
"""

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from configparser import ConfigParser, Error
from pathlib import Path
from typing import Any

from stages.formats.evaluation.report import EVALUATE_RECEIPT, EVALUATE_REPORT
from stages.formats.model_folder import MODEL
from stages.formats.reports import REPORTS, read_json
from stages.formats.revision.execution import TRAIN_EXECUTION, TRAIN_SPEED
from stages.formats.revision.lock import Stages, folder_md5, hash_of, makers_of
from stages.formats.revision.provenance import (
    CARD_FOLDER,
    EXECUTION,
    FORMAT,
    INPUTS,
    MOST_FILES,
    PROVENANCE,
    RECORD,
    RECORDED_DATA,
    SIGNATURE,
    SOURCE_ARCHIVE,
    SPEED,
    Amount,
    Dependency,
    GitState,
    InputListing,
    Place,
    Provenance,
    Source,
    printable,
    record_path,
)
from stages.formats.revision.signature import SIGNING_KEY, sign
from stages.formats.splits import SPLITS
from stages.formats.tokens import TOKENS, TokenStore
from stages.publish import lock
from stages.publish.params import PublishParams
from stages.publish.revision import Revision, file_hashes, training_execution, weights_hash
from stages.publish.source import (
    CodeArchive,
    archive_source,
    changed_files,
    files_of_dvc,
    find_secret,
    has_private_name,
    observe_git,
    public_url,
    tracked_files,
)
from stages.runtime.entry import UserError
from stages.runtime.stage_code import FOLDER

LARGEST_REPORT = 1_000_000
"""Bytes of a report that is kept. A larger one is a table of documents."""


def gather_record(revision: Revision, params: PublishParams, folder: Path) -> Revision:
    """The revision with its record, which is written below `folder`.

    Raises UserError where no one state of the project made the model, or the record would hold a credential.
    """
    everything = lock.read_lock()
    stages = lock.ancestors(everything, lock.publish_deps())
    lock.require_one_chain(stages)
    written = [*makers_of(everything), *map(Path.as_posix, (lock.LOCK, TRAIN_SPEED, TRAIN_EXECUTION))]
    state = observe_git(written)
    source = archive_source(state, stages, written)
    listing = list_inputs(stages, places(state, source), inside=params.include_data)
    execution, weights = training_execution(), weights_hash()
    reports = outputs_of(stages)

    measured = {record_path(path): path.read_bytes() for path in (EVALUATE_REPORT, EVALUATE_RECEIPT)}
    contents = lock.settings(stages) | measured | reports
    if TRAIN_SPEED.is_file() and read_json(TRAIN_SPEED).get("weights_sha256") == weights:
        contents[SPEED] = TRAIN_SPEED.read_bytes()
    if source.archive:
        contents[SOURCE_ARCHIVE] = source.content
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    listing.write(folder / INPUTS)
    if execution:
        execution.write(folder / EXECUTION)
    files = {path: folder / path for path in (*contents, INPUTS, *([EXECUTION] if execution else []))}
    files |= dict(data_inside(listing))
    require_no_secret(files)

    provenance = Provenance(
        format=FORMAT,
        revision=revision.name,
        files=revision.sha256 | {path: file_hashes(files[path]).sha256 for path in sorted(files)},
        git=state,
        source=source.archive,
        left_out=source.left_out,
    )
    provenance.write(folder / PROVENANCE)
    require_no_secret({PROVENANCE: folder / PROVENANCE})
    return Revision(revision.name, revision.files | files | attested(folder / PROVENANCE), revision.sha256)


def places(state: GitState | None, source: CodeArchive) -> dict[str, Place]:
    """Where the files are that the archive or the commit has."""
    found = {path: Place(kind="source archive") for path in (source.archive.files if source.archive else ())}
    if state and state.on_remote:
        found |= {path: Place(kind="commit") for path in set(tracked_files()) - set(changed_files())}
    return found


def outputs_of(stages: Stages) -> dict[str, bytes]:
    """Path in the revision -> content, of the metrics and curves that the stages wrote.

    Raises UserError if the model, the card or a report is not what its stage made.
    """
    reports: dict[str, bytes] = {}
    for stage, out in ((stage, out) for stage, entry in stages.items() for out in entry.get("outs", [])):
        path = Path(out["path"])
        if path not in (MODEL, CARD_FOLDER) and not path.is_relative_to(REPORTS):
            continue
        hashes = hashes_of(path)
        if name_of(path, hashes) != hash_of(out):
            raise UserError(
                f"{path}: is not what the stage {stage} made, by {lock.LOCK}: run `dvc repro {stage}`, which makes it "
                "again, then publish"
            )
        if path not in (MODEL, CARD_FOLDER) and out.get("size", 0) <= LARGEST_REPORT:
            files = [path] if path.is_file() else sorted(path.rglob("*.tsv"))
            reports |= {record_path(file): file.read_bytes() for file in files if file.suffix in (".json", ".tsv")}
    return reports


def require_no_secret(files: dict[str, Path]) -> None:
    """Raise UserError where a file of the record holds a credential. Those of the archive were looked at before."""
    for path, file in files.items():
        shown = path.removeprefix(f"{RECORDED_DATA}/").removeprefix(f"{RECORD}/")
        if has_private_name(file):
            raise UserError(f"{shown}: a file of this name may hold credentials, and would be published: take it out")
        # Of the data only the forms: in a corpus of code URLs with passwords are examples.
        in_urls = not path.startswith(f"{RECORDED_DATA}/")
        if path != SOURCE_ARCHIVE and (secret := find_secret(file.read_bytes(), in_urls=in_urls)):
            raise UserError(
                f"{shown}: holds what looks like a credential ({secret}), and would be published: "
                "take it out, and give it in an environment variable, ~/.netrc or a library's own configuration"
            )


def data_inside(listing: InputListing) -> Iterator[tuple[str, Path]]:
    """Path in the revision -> file, of the data that `publish.include_data` puts there."""
    for dependency in listing.dependencies:
        if any(place.kind == "record" for place in dependency.places):
            inside = (path for path in dependency.files if Path(path).is_file())
            yield from ((f"{RECORDED_DATA}/{path}", Path(path)) for path in inside)


def attested(index: Path) -> dict[str, Path]:
    """The index and, if a key is named, its signature, which is made here."""
    if not (key := os.environ.get(SIGNING_KEY)):
        return {PROVENANCE: index}
    return {PROVENANCE: index, SIGNATURE: sign(index, Path(key).expanduser())}


DVC_CONFIGS = (Path(".dvc/config"), Path(".dvc/config.local"))
"""Later ones win."""

STANDARD_LIBRARY = "standard_library"


def list_inputs(stages: Stages, places: Mapping[str, Place], *, inside: bool) -> InputListing:
    """The listing. `stages` are the entries of dvc.lock that led to the revision.

    `places`: where the files are that the commit or the source archive has. `inside`: whether the revision holds the
    files that neither of them has.
    """
    return InputListing(
        sources=list(sources(lock.recorded_section(stages, "collect").get("sources", []))),
        dependencies=[
            dependency(dep, places, inside=inside)
            for dep in lock.outside_deps(stages)
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
    """The kind of a source and where its bytes are; of several entries that make up one source those of all. Rows may
    name sources of their own, of which that is not known.

    The fields say where: a new kind that has `globs` or a `repository` is located without being known here.
    """
    kinds: dict[str, None] = {}
    places: dict[Place, None] = {}
    for source in asked:
        if source.get("name", name) != name or source.get("revision", revision) != revision:
            continue
        match source:
            case {"kind": "packages", "names": names} if name in names:
                where = [Place(kind="package", address=f"{name}=={revision}")]
            case {"kind": "standard_library"} if name == STANDARD_LIBRARY:
                where = [Place(kind="package", address=f"python=={revision}")]
            case {"name": _, "repository": repository}:
                on_hub = not Path(repository).is_dir()
                where = [Place(kind="hub", address=f"{repository}@{revision}") if on_hub else Place(kind="local")]
            case {"name": _, "globs": globs}:
                where = [located(pattern) for pattern in globs]
            case {"name": _}:
                where = []
            case _:
                continue
        kinds[source["kind"]] = None
        places |= dict.fromkeys(where)
    return ", ".join(kinds), list(places)


def located(pattern: str) -> Place:
    """Where the files of a pattern are; the last part of a chain of fsspec (`zip://*.csv::PATH`) says it."""
    file = pattern.rpartition("::")[2]
    if public_url(file):
        return Place(kind="url", address=public_url(pattern))
    # A path outside of the project says where things are on this machine.
    outside = "://" in file or Path(file).is_absolute()
    return Place(kind="local") if outside else Place(kind="local", address=pattern)


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
        files={} if edited else {printable(str(file)): file_hashes(file).sha256 for file in list(hashes)[:MOST_FILES]},
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
    return {file: file_hashes(file).md5 for file in ([path] if path.is_file() else files_of_dvc(path))}


def name_of(path: Path, hashes: Mapping[Path, str]) -> str:
    """What DVC names the content of a file or folder by: of a file its md5, of a folder that of its listing."""
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
