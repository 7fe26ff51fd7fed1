"""Gathers the record of a revision: what made it, by dvc.lock, git and the training.

Everything here is observed and no dependency of the stage: a commit that changes no input publishes nothing anew. No
timestamps, no paths of this machine, no credentials; the order of everything is fixed.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from stages.formats.evaluation.report import EVALUATE_REPORT
from stages.formats.reports import REPORTS, read_json
from stages.formats.revision.execution import TRAIN_SPEED
from stages.formats.revision.lock import Stages
from stages.formats.revision.provenance import (
    EVALUATION,
    EXECUTION,
    FORMAT,
    INPUTS,
    PROVENANCE,
    RECORD,
    SIGNATURE,
    SOURCE_ARCHIVE,
    SPEED,
    Amount,
    InputListing,
    Provenance,
    Source,
    record_path,
)
from stages.formats.revision.verify import SIGNING_KEY, sign
from stages.formats.tokens import SPLITS, TOKENS, TokenStore
from stages.publish import lock
from stages.publish.params import PublishParams
from stages.publish.revision import Revision, file_hash, training_execution, weights_hash
from stages.publish.source import archive_source, require_no_secret

LARGEST_REPORT = 1_000_000
"""Bytes of a report that is kept. A larger one is a table of documents."""


def gather_record(revision: Revision, params: PublishParams, folder: Path) -> Revision:
    """The revision with its record, which is written below `folder`.

    Raises UserError if the project is not as dvc.lock says, or the record would hold a credential.
    """
    stages = lock.published_stages()
    archive, state = archive_source(stages, include_data=params.include_data)
    measured = {EVALUATION: EVALUATE_REPORT.read_bytes()}
    contents = lock.settings(stages) | measured | reports_of(stages)
    if TRAIN_SPEED.is_file() and read_json(TRAIN_SPEED).get("weights_sha256") == weights_hash():
        contents[SPEED] = TRAIN_SPEED.read_bytes()
    for path, content in contents.items():
        require_no_secret(path.removeprefix(f"{RECORD}/"), content, in_urls=True)
    contents[SOURCE_ARCHIVE] = archive
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    InputListing(sources=list(sources())).write(folder / INPUTS)
    if execution := training_execution():
        execution.write(folder / EXECUTION)
    files = {path: folder / path for path in (*contents, INPUTS, *([EXECUTION] if execution else []))}
    hashes = revision.sha256 | {path: file_hash(files[path]) for path in sorted(files)}
    Provenance(format=FORMAT, revision=revision.name, files=hashes, git=state).write(folder / PROVENANCE)
    for path in (INPUTS, EXECUTION, PROVENANCE):
        if (folder / path).exists():
            require_no_secret(path.removeprefix(f"{RECORD}/"), (folder / path).read_bytes(), in_urls=True)
    return Revision(revision.name, revision.files | files | attested(folder / PROVENANCE), revision.sha256)


def reports_of(stages: Stages) -> dict[str, bytes]:
    """Path in the revision -> content, of the metrics and curves that the stages wrote."""
    outs = (out for entry in stages.values() for out in entry.get("outs", []))
    paths = [Path(out["path"]) for out in outs if out.get("size", 0) <= LARGEST_REPORT]
    files = (
        file
        for path in paths
        if path.is_relative_to(REPORTS)
        for file in ([path] if path.is_file() else sorted(path.rglob("*.tsv")))
    )
    return {record_path(file): file.read_bytes() for file in files if file.suffix in (".json", ".tsv")}


def attested(index: Path) -> dict[str, Path]:
    """The index and, if a key is named, its signature, which is made here."""
    if not (key := os.environ.get(SIGNING_KEY)):
        return {PROVENANCE: index}
    return {PROVENANCE: index, SIGNATURE: sign(index, Path(key).expanduser())}


@dataclass
class Counted:
    """Documents of one source, counted one by one: millions of them need no memory."""

    documents: int = 0
    bytes: int = 0
    ids: int = 0
    """The sum of the hashes of their ids, which does not depend on their order."""
    licenses: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Licence -> documents, bytes."""


def sources() -> Iterator[Source]:
    """What was tokenized, by source and revision."""
    found: dict[tuple[str, str], Counted] = {}
    for split in SPLITS:
        for info in TokenStore(TOKENS / split).document_infos():
            counted = found.setdefault((info["source"], info["revision"]), Counted())
            counted.documents += 1
            counted.bytes += info["bytes"]
            counted.ids += int(sha256(info["id"].encode()).hexdigest(), 16)
            documents, size = counted.licenses.get(info["license"], (0, 0))
            counted.licenses[info["license"]] = (documents + 1, size + info["bytes"])
    for (name, revision), counted in sorted(found.items()):
        licenses = {name: Amount(documents=n, bytes=size) for name, (n, size) in sorted(counted.licenses.items())}
        yield Source(
            name=name,
            revision=revision,
            documents=counted.documents,
            bytes=counted.bytes,
            ids=f"{counted.ids % 2**256:064x}",
            licenses=licenses,
        )
