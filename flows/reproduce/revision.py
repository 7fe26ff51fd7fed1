"""Opens and verifies a published revision, in a folder or on the Hub."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from stages.formats.model_folder import MODEL
from stages.formats.reports import REPORTS
from stages.formats.revision.execution import Execution
from stages.formats.revision.provenance import (
    EXECUTION,
    MAIN,
    PROVENANCE,
    RECORDED_LOCK,
    RECORDED_PARAMS,
    RECORDED_PIPELINE,
    RECORDED_REQUIREMENTS,
    SOURCE_ARCHIVE,
    LockEntry,
    ancestors,
    is_observed,
    is_within,
    maker_of,
    makers_of,
    outs_of,
    overlaps,
    project_path,
    read_recorded_lock,
    revision_path,
)
from stages.formats.revision.statement import Provenance
from stages.formats.revision.verify import verify_files, verify_signature
from stages.runtime.errors import STATE_DIR, UserError
from stages.runtime.hub import explained
from stages.runtime.stage_code import code_in

NEEDED = (RECORDED_PARAMS, RECORDED_PIPELINE, RECORDED_LOCK, RECORDED_REQUIREMENTS, SOURCE_ARCHIVE)
"""Files that a reproduction needs."""


@dataclass(frozen=True)
class RecordedRevision:
    """A revision and its record."""

    asked: str
    """The user's name for it."""
    folder: Path
    provenance: Provenance
    stages: dict[str, LockEntry]
    """The lock entries of all stages that led to the model and its evaluation, in topological order."""
    execution: Execution | None
    """How the training was executed."""
    work: Path
    """The folder of its reproduction."""

    @cached_property
    def makers(self) -> dict[str, str]:
        """Output of the pipeline -> the stage that writes it."""
        return makers_of(self.stages)

    def maker_of(self, path: str) -> str | None:
        """The recorded stage that writes a file or folder of the project; None if there is none."""
        return maker_of(self.makers, path)

    def is_made(self, path: str) -> bool:
        """True if recorded stages write a dependency or parts of it."""
        return any(overlaps(out, path) for out in self.makers)

    @property
    def python(self) -> str | None:
        """The training's version of Python; None if it is not recorded."""
        sessions = self.execution.sessions if self.execution else []
        return sessions[0].versions.get("python") if sessions else None

    @property
    def training(self) -> str | None:
        """The stage that writes the weights."""
        return self.maker_of(MODEL.as_posix())

    @property
    def data_stages(self) -> list[str]:
        """The stages that the training depends on, directly or through others."""
        deps = self.stages[self.training].get("deps", []) if self.training else []
        return list(ancestors(self.stages, [dep["path"] for dep in deps]))

    @cached_property
    def published(self) -> dict[str, str]:
        """File of the revision that the pipeline wrote -> the same file in the project."""
        files = {path: project_path(path) for path in self.provenance.files}
        return {path: file for path, file in files.items() if file and self.maker_of(file) is not None}


def unmade(provenance: Provenance, stages: dict[str, LockEntry]) -> list[str]:
    """The files of the model, its card and its reports that no recorded stage writes."""
    made = makers_of(stages)
    files = {path: project_path(path) or "" for path in provenance.files}
    results = {path: file for path, file in files.items() if not is_observed(path) or is_within(file, str(REPORTS))}
    return [path for path, file in results.items() if maker_of(made, file) is None]


def read_revision(asked: str, folder: Path, work: Path) -> RecordedRevision:
    """Read a revision whose hashes were checked. Raises UserError if its record is incomplete."""
    provenance = Provenance.find(folder / PROVENANCE)
    missing = [path for path in NEEDED if not (folder / path).is_file()]
    if provenance is None or missing:
        raise UserError(
            f"{asked}: holds no {missing[0] if missing else PROVENANCE}, so it does not say what it was made from; "
            "publish the model again"
        )
    recorded, execution = read_recorded_lock(folder), Execution.find(folder / EXECUTION)
    stages = ancestors(recorded, [out["path"] for out in outs_of(recorded)])
    return RecordedRevision(asked, folder, provenance, stages, execution, work)


def code_changes_in(revision: RecordedRevision, checkout: Path, path: str) -> list[str]:
    """The changes of a stage's code in the checkout; `modified` if one of the two records cannot be read."""
    recorded, present = code_in(revision.folder / revision_path(path)), code_in(checkout / path)
    return [f"{path}: modified"] if recorded is None or present is None else recorded.changes_to(present)


WORK = STATE_DIR / "reproduce"
"""The parent of the work folders."""

HUB_NAME = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+?)(@(?P<revision>[\w./-]+))?")

OF_THE_HUB = (".gitattributes", ".cache", ".git")
"""Files that the Hub, its client and a clone add to a revision."""


def work_folder(asked: str, given: Path | None) -> Path:
    """The folder of a revision's reproduction: `given`, or one in `WORK`.

    Raises UserError, before anything is written, if the revision is missing, or is local and damaged.
    """
    local = local_folder(asked)
    if local is not None:
        require_as_published(asked, local)
    name = re.sub("[/@]", "--", asked) if local is None else Provenance.read(local / PROVENANCE).revision
    return (given or WORK / name).absolute()


def open_revision(asked: str, work: Path) -> RecordedRevision:
    """Open and verify a revision, to be reproduced in `work`.

    A local revision is read in place; one on the Hub is downloaded once, to `WORK/revision`. Raises UserError if it is
    damaged, or its record does not cover its files.
    """
    folder = local_folder(asked)
    if folder is None:
        folder = fetched(asked, work)
        require_as_published(asked, folder)
    revision = read_revision(asked, folder, work)
    without = unmade(revision.provenance, revision.stages)
    if revision.training is None or without:  # these files could not be compared
        raise UserError(
            f"{asked}: no stage in {RECORDED_LOCK} makes {without[0] if without else MODEL}, "
            "so the revision cannot be reproduced"
        )
    return revision


def local_folder(asked: str) -> Path | None:
    """The folder of a local revision; None for a name on the Hub. Raises UserError for anything else."""
    path = Path(asked)
    if path.is_dir():
        # `published/NAME` contains the revisions; its link `main` to the current one may move.
        return (path if (path / PROVENANCE).exists() or not (path / MAIN).exists() else path / MAIN).resolve()
    if path.is_file():
        raise UserError(f"{asked}: is a file; unpack it, and name the folder")
    if HUB_NAME.fullmatch(asked) is None:
        raise UserError(f"{asked}: neither a folder nor a Hub name such as owner/name@revision")
    return None


def fetched(asked: str, work: Path) -> Path:
    """Download a revision from the Hub, unless that is done; a killed download continues."""
    from huggingface_hub import snapshot_download

    folder, partial, match = work / "revision", work / "revision.partial", HUB_NAME.fullmatch(asked)
    if not folder.exists() and match is not None:
        repository, revision = match["repository"], match["revision"] or MAIN  # a tag, a branch or a commit
        try:
            with explained(f"{repository}@{revision}"):
                snapshot_download(repository, revision=revision, local_dir=partial)
        except UserError as error:
            raise type(error)(f"{error}; and there is no such folder here") from None
        partial.rename(folder)
    return folder


def require_as_published(asked: str, folder: Path) -> None:
    """Raise UserError, naming them, if files differ from the published ones."""
    if faults := verify_files(folder, besides=OF_THE_HUB):
        first = "; ".join([*faults[:3], *([f"and {len(faults) - 3} more"] if len(faults) > 3 else [])])
        if Provenance.find(folder / PROVENANCE) is None:  # not necessarily damage: perhaps another format
            raise UserError(f"{asked}: {first}")
        # On main the Hub's website may edit the card, and there may be other files.
        raise UserError(f"{asked} is damaged: {first}; fetch it again, on the Hub by the tag that names the revision")


def check_signature(asked: str, folder: Path, key: Path | None) -> str:
    """The state of the signature, in words.

    Raises UserError if it is not valid, or if a key is given (`key` or PARROTFLOW_TRUSTED_KEY) that did not sign the
    revision.
    """
    signature = verify_signature(folder, key)
    if not signature.is_acceptable(key):
        raise UserError(f"{asked}: {signature}")
    return str(signature)
