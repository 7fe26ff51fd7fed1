"""A published revision: where everything is, every path once, and what its index says.

    model.safetensors, config.json, tokenizer.json, ...   as in the model folder
    README.md, curves.png                          the model card and its picture
    record/                                        what made the revision: `record_path` of a file of the project, and
        params.yaml, dvc.yaml, dvc.lock, data/code/..., requirements.lock, accepted.yaml, reports/...
        execution.json                             `Execution`: how the training was executed
        train_speed.json                           how fast it was, and how much of its time was useful
        inputs.json                                `InputListing`: the data that went in
        source.tar.gz                              the code, where the commit alone does not have it
        included/...                               inputs, only where `publish.include_data` asks for them
    provenance.json                                `Provenance`: the index, with the sha256 of every file above
    provenance.json.sig                            the signature of the index, only if a key is named

A revision's name follows from the files outside record/: the same model with the same card has the same name, whoever
publishes it, wherever. The record of the first publication is kept.

In a folder destination, below `published/NAME`:

    revisions/REVISION/          as above
    main -> revisions/REVISION   the current revision
    receipt.json                 `Receipt`: what the last publication did

On the Hub `main` has a commit for each revision, which the tag REVISION names. The branch `run_branch` has a commit for
each exported step of a run, which `step_tag` names.
"""

import hashlib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, Field

from stages.formats.evaluation.report import EVALUATE_RECEIPT, EVALUATE_REPORT
from stages.formats.model_folder import WEIGHTS, combined_sha256
from stages.formats.reports import Report, write_json

CARD = "README.md"
CURVES = "curves.png"
CARD_FOLDER = Path("data/card")
"""The folder of the project with both."""
PROVENANCE = "provenance.json"
SIGNATURE = "provenance.json.sig"

RECORD = "record"
RECORDED_PARAMS = "record/params.yaml"
RECORDED_PIPELINE = "record/dvc.yaml"
RECORDED_LOCK = "record/dvc.lock"
RECORDED_REQUIREMENTS = "record/requirements.lock"
RECORDED_DATA = "record/included"
EXECUTION = "record/execution.json"
SPEED = "record/train_speed.json"
INPUTS = "record/inputs.json"
SOURCE_ARCHIVE = "record/source.tar.gz"

NOT_INDEXED = frozenset({PROVENANCE, SIGNATURE})
"""Files whose hashes the provenance does not have: itself, and what is made from it."""

SHIPPED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
"""Of the model folder: weights, configuration, tokenizer. No pickle, which could run code when loaded."""

REVISIONS = "revisions"
MAIN = "main"
RECEIPT = "receipt.json"

NAME_DIGITS = 16


def revision_name(sha256: Mapping[str, str]) -> str:
    """The name of a revision, from its files' paths and hashes. Observed files do not count."""
    listing = "".join(f"{sha256[path]}  {path}\n" for path in sorted(sha256) if not is_observed(path))
    return hashlib.sha256(listing.encode("utf-8")).hexdigest()[:NAME_DIGITS]


def is_observed(path: str) -> bool:
    """Whether a file of a revision says how it was made or published, so that another publication may differ in it."""
    return path in NOT_INDEXED or path.startswith(f"{RECORD}/")


def is_shipped(path: str) -> bool:
    """Whether a file of the model folder is published, by its path there. An exported step is not of the revision."""
    return "/" not in path and not is_observed(path) and any(fnmatchcase(path, pattern) for pattern in SHIPPED)


def record_path(path: Path | str) -> str:
    """Where a revision keeps a file of the project: `reports/train.json` -> `record/reports/train.json`."""
    return f"{RECORD}/{Path(path).as_posix()}"


EVALUATION = record_path(EVALUATE_REPORT)
EVALUATION_RECEIPT = record_path(EVALUATE_RECEIPT)


def run_name(fingerprint: str) -> str:
    """The name of a training run, from the fingerprint of its checkpoints."""
    return fingerprint[:NAME_DIGITS]


def printable(path: str) -> str:
    """A path as JSON can hold it: bytes that are not UTF-8 are written out, e.g. `\\udce9`."""
    return path.encode("utf-8", "backslashreplace").decode("utf-8")


def step_name(step: int) -> str:
    """The folder of an exported step in `model/`: 100 -> `step-00000100`."""
    return f"step-{step:08d}"


def run_branch(run: str) -> str:
    """The branch on the Hub that has a run's steps and its model."""
    return f"run-{run}"


def step_tag(revision: str, step: int) -> str:
    """The tag on the Hub of an exported step of a revision's run."""
    return f"{revision}-{step_name(step)}"


def publication_receipt(folder: str, name: str) -> Path:
    """Where the receipt of `publish.name` is, below `publish.folder`."""
    return Path(folder) / name / RECEIPT


MOST_FILES = 10_000
"""Of one folder, that are listed by name."""


class GitState(BaseModel, frozen=True):
    """The commit that was checked out when the revision was published, and what differed from it."""

    commit: str
    dirty: bool
    """Whether files differed from the commit. What the pipeline writes itself does not count."""
    changed: list[str]
    """Tracked files that differed; at most 100."""
    untracked: int
    """How many files git did not know. Their names are not published."""
    origin: str | None = None
    """The URL of the remote repository, without credentials; None where there is none."""
    on_remote: bool = False
    """Whether the remote repository had the commit, as far as this clone knew."""
    folder: str = ""
    """The project's folder in the repository; empty where it is the root."""


class LeftOut(BaseModel, frozen=True):
    """A file that the code needs and that is not in the source archive."""

    path: str
    reason: str


class SourceArchive(BaseModel, frozen=True):
    """What `record/source.tar.gz` holds: the code of a revision that the commit alone does not have."""

    sha256: str
    files: dict[str, str]
    """File -> sha256."""
    whole: bool
    """True: every file that a run needs. False: only what is to be laid over a checkout of the commit."""
    deleted: list[str]
    """Tracked files that the tree did not have; only where it is not whole."""


FORMAT = 1
"""Of a revision. Another one is refused."""


class Provenance(Report, extra="ignore"):
    """The index of a revision: where its code comes from, and the hash of every file."""

    path: ClassVar[Path] = Path(PROVENANCE)
    stage: ClassVar[str] = "publish"

    format: Literal[1]
    """`FORMAT`."""
    revision: str
    files: dict[str, str]
    """File of the revision -> sha256, without this file and the signature."""
    git: GitState | None
    """None outside a git repository."""
    source: SourceArchive | None
    """None where the commit has all the code."""
    left_out: list[LeftOut]
    """What the code needs and is in neither the commit nor the archive."""

    @property
    def weights_sha256(self) -> str:
        """What `model_folder.weights_sha256` of the revision's weights is."""
        return combined_sha256([self.files[path] for path in sorted(self.files) if fnmatchcase(path, WEIGHTS)])


class Place(BaseModel, frozen=True):
    """Where bytes can be had from."""

    kind: Literal["commit", "source archive", "record", "dvc remote", "package", "hub", "url", "local"]
    """`commit`: the git commit of the provenance. `record`: below `record/included/` of the revision. `local`: only the
    project itself is known to have it."""
    address: str | None = None
    """Of a DVC remote or URL, without credentials; `name==version` of a package; `repository@commit` on the Hub."""


class Dependency(BaseModel, frozen=True):
    """A file or folder that stages depend on and that none makes; code excepted."""

    path: str
    md5: str
    """As dvc.lock records it; of a folder that of DVC's listing, with `.dir` at its end; of a URL the server's tag."""
    bytes: int
    files: dict[str, str]
    """File -> sha256, by its path from the project's root; at most `MOST_FILES`."""
    not_listed: int
    """Files of a folder beyond those."""
    edited: bool = False
    """Whether it was changed after the stages had run; then no file is listed."""
    places: list[Place]


class Amount(BaseModel, frozen=True):
    """An amount of text."""

    documents: int
    bytes: int


class Source(BaseModel, frozen=True):
    """A source of documents, and what of it the model was trained and validated on."""

    name: str
    revision: str
    """A version, a commit, or the user's own text."""
    kind: str
    """As `collect.sources` names it, of several entries the kinds of all; empty where that is not recorded."""
    documents: int
    bytes: int
    """UTF-8 bytes of the documents' text, as they were tokenized."""
    sha256: str
    """Of the documents' ids, sorted, one a line."""
    licenses: dict[str, Amount]
    """SPDX expression, or empty where none is known -> amount."""
    places: list[Place]


class InputListing(Report, extra="ignore"):
    """All data that went into a revision: `record/inputs.json`. Names, hashes, licences, and where the bytes are."""

    path: ClassVar[Path] = Path(INPUTS)
    stage: ClassVar[str] = "publish"

    sources: list[Source]
    dependencies: list[Dependency]
    remote: str | None = None
    """The URL of the project's default DVC remote, without credentials; it has what the stages made, if that was
    pushed. None where there is none, or a folder of one machine."""


class Receipt(Report):
    """The receipt of a publication, what the last run of publish did: publish writes it, people and flows read it.

    It is in the folder of the published model, so that deleting `published/` deletes the receipt too, and DVC notices.
    """

    stage: ClassVar[str] = "publish"

    destination: Literal["folder", "hub", "none"]
    """`none`: nothing was published."""
    location: str
    """The model's folder, or `owner/name` on the Hub."""
    revision: str | None = None
    """The name of the revision that `main` leads to."""
    commit: str | None = None
    """On the Hub: the commit on `main`."""
    run: str | None = None
    """The name of the training run (`run_name`); None where its checkpoints' fingerprint is not recorded."""
    steps: dict[int, str] = Field(default_factory=dict)
    """On the Hub: exported step of that run -> its commit."""
    data_set: str | None = None
    """The commit of the data set, if `publish.dataset_repository` names one."""
    sha256: dict[str, str] = Field(default_factory=dict)
    """File of the revision -> sha256; without the observed files, which another publication may have otherwise."""
    prompt: str | None = None
    """That of the card's example, for people who try the model."""
    reason: str | None = None
    """Why nothing was published."""

    def write(self, path: Path | None = None) -> None:
        """Write it without the fields that have no value; nothing is written where it is there."""
        if Receipt.find(path) != self:
            write_json(path or self.path, self.model_dump(mode="json", exclude_none=True))
