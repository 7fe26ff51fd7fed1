"""Gathers the record of a revision: what made it, as far as dvc.lock, git and the training say.

Everything here is observed and no dependency of the stage: a commit that changes no input publishes nothing anew. No
timestamps, no paths of this machine, no credentials; the order of everything is fixed.
"""

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from stages.formats.model_folder import MODEL, weights_sha256
from stages.formats.reports import REPORTS
from stages.formats.revision.execution import TRAIN_EXECUTION, TRAIN_SPEED
from stages.formats.revision.lock import Stages
from stages.formats.revision.provenance import (
    EXECUTION,
    INPUTS,
    PROVENANCE,
    RECORD,
    RECORDED_DATA,
    SIGNATURE,
    SOURCE_ARCHIVE,
    GitState,
    InputListing,
    Place,
    Provenance,
    record_path,
)
from stages.formats.revision.verify import SIGNING_KEY, sign
from stages.publish import inputs, lock
from stages.publish.params import PublishParams
from stages.publish.record import git
from stages.publish.record.data import hashes_of, list_inputs, listing_of, md5_of_dvc
from stages.publish.record.source import CodeArchive, archive_source, find_secret, has_private_name
from stages.publish.revision import Revision
from stages.runtime.atomic import file_sha256
from stages.runtime.entry import UserError

LARGEST_REPORT = 1_000_000
"""Bytes of a report that is kept. A larger one is a table of documents."""


def gather_record(revision: Revision, params: PublishParams, folder: Path) -> Revision:
    """The revision with its record, which is written below `folder`.

    Raises UserError where no one state of the project made the model, or the record would hold a credential.
    """
    everything = lock.read_lock()
    needed = [path.as_posix() for path in inputs.paths_read()]
    stages = lock.ancestors(everything, needed)
    written = [*lock.output_paths(everything), *map(Path.as_posix, (lock.LOCK, TRAIN_SPEED, TRAIN_EXECUTION))]
    state = git.observe_git(written)
    source = archive_source(state, stages, written)
    listing = list_inputs(stages, places(state, source), inside=params.include_data)
    execution = inputs.training_execution()
    reports, edited_reports = reports_of(stages)

    contents = lock.settings(stages) | reports
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
        revision=revision.name,
        files=revision.sha256 | {path: file_sha256(files[path]) for path in sorted(files)},
        folders=dict(folders_of(stages)),
        weights_sha256=weights_sha256(),
        git=state,
        source=source.archive,
        left_out=source.left_out,
        not_recorded=[
            *([] if execution else ["how the training was executed"]),
            *(f"dvc.yaml as {stage} ran: it was edited since" for stage in lock.stages_of_another_pipeline(stages)),
            *(f"{path} as its stage wrote it: it was edited since" for path in edited_reports),
        ],
        pipeline=[{"stage": name} | stage for name, stage in stages.items()],
        not_in_lock=lock.not_in_lock(everything, needed),
        publish=params.model_dump(mode="json"),
        versions=lock.recorded_versions(stages),
        training=inputs.training_facts(),
        continued_from=[run.continued_from for run in execution.sessions if run.continued_from] if execution else [],
        published_from={
            "python": platform.python_version(),
            "system": platform.system(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
        },
    )
    provenance.write(folder / PROVENANCE)
    require_no_secret({PROVENANCE: folder / PROVENANCE})
    return Revision(revision.name, revision.files | files | attested(folder / PROVENANCE), revision.sha256)


def places(state: GitState | None, source: CodeArchive) -> dict[str, Place]:
    """Where the files are that the archive or the commit has."""
    found = {path: Place(kind="source archive") for path in (source.archive.files if source.archive else ())}
    if state and state.on_remote:
        found |= {path: Place(kind="commit") for path in set(git.tracked_files()) - set(git.changed_files())}
    return found


def reports_of(stages: Stages) -> tuple[dict[str, bytes], list[str]]:
    """Path in the revision -> content, of the metrics and curves that the stages wrote; and those edited since."""
    reports: dict[str, bytes] = {}
    edited = []
    for out in (out for stage in stages.values() for out in stage.get("outs", [])):
        path = Path(out["path"])
        if not path.is_relative_to(REPORTS) or out.get("size", 0) > LARGEST_REPORT:
            continue
        if md5_of_dvc(path) != out.get("md5"):
            edited.append(out["path"])
            continue
        files = [path] if path.is_file() else sorted(path.rglob("*.tsv"))
        reports |= {record_path(file): file.read_bytes() for file in files if file.suffix in (".json", ".tsv")}
    return reports, edited


def folders_of(stages: Stages) -> Iterator[tuple[str, dict[str, str]]]:
    """(folder, its files' md5) of those folders of the stages' outputs that a revision has files of."""
    for path in (Path(out["path"]) for stage in stages.values() for out in stage.get("outs", [])):
        if path.is_dir() and (path == MODEL or path.is_relative_to(REPORTS)):
            yield path.as_posix(), listing_of(path, hashes_of(path))


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
    """The index and, where a key is named, its signature, which is made here."""
    if not (key := os.environ.get(SIGNING_KEY)):
        return {PROVENANCE: index}
    sign(index, Path(key).expanduser())
    return {PROVENANCE: index, SIGNATURE: index.with_name(SIGNATURE)}
