"""A published revision: where everything is, every path once, and what its index and its dvc.lock say.

    model.safetensors, config.json, tokenizer.json, ...   from model/
    README.md, curves.png                          the model card and its picture, from data/card/
    record/                                        what made the revision: files of the project by their paths, and
        params.yaml, dvc.yaml, dvc.lock, data/code/..., requirements.lock, reports/...
        execution.json                             `Execution`: how the training was executed
        train_speed.json                           how fast it was
        source.tar.gz                              the code, and the inputs that git has
    provenance.json                                `Provenance`: the index, with the sha256 of every file above, the
                                                   commit, and the data that went in
    provenance.json.sig                            the signature of the index, only if a key is named

A revision's name follows from the files outside record/: the same model with the same card has the same name, whoever
publishes it, wherever. The record of the first publication is kept.

In a folder destination, below `published/NAME`:

    revisions/REVISION/          as above
    main -> revisions/REVISION   the current revision
    receipt.json                 `Receipt`: what the last publication did

On the Hub `main` has a commit for each publication, and the tag REVISION names the first one of that revision. The
branch `run_branch` has a commit for each exported step of a run, which `step_tag` names.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, Field
from ruamel.yaml.error import YAMLError

from stages.formats.evaluation.report import EVALUATE_REPORT
from stages.formats.model_folder import MODEL
from stages.formats.reports import Report, write_json
from stages.runtime.errors import UserError, first_line
from stages.runtime.section import read_yaml
from stages.runtime.stage_code import FOLDER

CARD = "README.md"
CURVES_PICTURE = "curves.png"
CARD_FOLDER = Path("data/card")
"""The folder of the project with both."""
PROVENANCE = "provenance.json"
SIGNATURE_FILE = "provenance.json.sig"

RECORD_FOLDER = "record"
RECORDED_PARAMS = "record/params.yaml"
RECORDED_PIPELINE = "record/dvc.yaml"
RECORDED_LOCK = "record/dvc.lock"
RECORDED_REQUIREMENTS = "record/requirements.lock"
EXECUTION = "record/execution.json"
SPEED = "record/train_speed.json"
SOURCE_ARCHIVE = "record/source.tar.gz"

WRITTEN_BY_PUBLISH = frozenset({EXECUTION, SPEED, SOURCE_ARCHIVE})
"""Files of the record that are no copies of files at those paths of the project."""

NOT_INDEXED = frozenset({PROVENANCE, SIGNATURE_FILE})
"""Files that the provenance does not hash: itself, and files that are made from it."""

SHIPPED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
"""Files of the model folder: weights, configuration, tokenizer. No pickle, which could run code when loaded."""

REVISIONS = "revisions"
MAIN = "main"
RECEIPT = "receipt.json"

NAME_DIGITS, MIN_DIGITS = 16, 4
"""Of a revision's name, and the minimum of an abbreviated one, as in git."""


def revision_name(sha256: Mapping[str, str]) -> str:
    """The name of a revision, from its files' paths and hashes. Observed files do not count."""
    listing = "".join(f"{sha256[path]}  {path}\n" for path in sorted(sha256) if not is_observed(path))
    return hashlib.sha256(listing.encode("utf-8")).hexdigest()[:NAME_DIGITS]


def is_observed(path: str) -> bool:
    """Whether a file of a revision says how it was made or published, so that another publication may differ in it."""
    return path in NOT_INDEXED or path.startswith(f"{RECORD_FOLDER}/")


def is_shipped(path: str) -> bool:
    """Whether a file of the model folder is published, by its path there. An exported step is not of the revision."""
    return "/" not in path and not is_observed(path) and any(fnmatchcase(path, pattern) for pattern in SHIPPED)


def revision_path(file: Path | str) -> str:
    """Where a revision keeps a file of the project: `model/config.json` -> `config.json`.

    Files of the model and the card are at its top, all others in its record, by their path in the project.
    """
    path = Path(file)
    return path.name if path.parent in (MODEL, CARD_FOLDER) else f"{RECORD_FOLDER}/{path.as_posix()}"


def project_path(path: str) -> str | None:
    """The file of the project of which a revision keeps a copy at `path`; None if it keeps none there.

    The inverse of `revision_path`.
    """
    if path in (CARD, CURVES_PICTURE):
        return f"{CARD_FOLDER}/{path}"
    if is_shipped(path):
        return f"{MODEL}/{path}"
    is_copy = path.startswith(f"{RECORD_FOLDER}/") and path not in WRITTEN_BY_PUBLISH
    return path.removeprefix(f"{RECORD_FOLDER}/") if is_copy else None


EVALUATION = revision_path(EVALUATE_REPORT)


def run_name(fingerprint: str) -> str:
    """The name of a training run, from the fingerprint of its checkpoints."""
    return fingerprint[:NAME_DIGITS]


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


class Receipt(Report):
    """What the last run of `publish` did: publish writes it, people and flows read it.

    It is in the folder of the published model, so that deleting `published/` deletes the receipt too, and DVC notices.
    """

    stage: ClassVar[str] = "publish"

    destination: Literal["folder", "hub", "none"]
    """`none`: nothing was published, in the temporary workspace of an experiment."""
    location: str
    """The model's folder, or `owner/name` on the Hub."""
    revision: str | None = None
    """The name of the revision that `main` leads to."""
    commit: str | None = None
    """On the Hub: the commit on `main`."""
    run: str | None = None
    """The name of the training run (`run_name`); None if the fingerprint of its checkpoints is not recorded."""
    steps: dict[int, str] = Field(default_factory=dict)
    """On the Hub: exported step of that run -> its commit."""
    data_set: str | None = None
    """The commit of the data set, if `publish.dataset_repository` names one."""
    prompt: str | None = None
    """That of the card's example, for people who try the model."""

    def write(self, path: Path | None = None) -> None:
        """Write it without the fields that have no value."""
        write_json(path or self.path, self.model_dump(mode="json", exclude_none=True))


LockEntry: TypeAlias = dict[str, Any]
"""The entry of a stage in dvc.lock: cmd, deps, params, outs."""

Stages: TypeAlias = dict[str, LockEntry]


class _Item(BaseModel, strict=True):
    path: str
    md5: str | None = None


class _Stage(BaseModel, strict=True):
    cmd: str | list[str]
    deps: list[_Item] = []
    outs: list[_Item] = []
    params: dict[str, dict[str, Any]] = {}


class _Lock(BaseModel, strict=True):
    stages: dict[str, _Stage] = {}


def read_recorded_lock(folder: Path) -> Stages:
    """The stages of a revision's dvc.lock; empty if it has none. Raises UserError if it is damaged."""
    if not (folder / RECORDED_LOCK).is_file():
        return {}
    try:
        content = read_yaml((folder / RECORDED_LOCK).read_bytes(), trusted=False)
        _Lock.model_validate(content)
    except (YAMLError, ValueError, RecursionError, OSError) as error:
        raise UserError(f"damaged: {RECORDED_LOCK}: not a dvc.lock ({first_line(error)})") from None
    stages: Stages = content.get("stages", {})
    for path in (out["path"] for out in outs_of(stages)):
        if is_outside(path):
            raise UserError(f"damaged: {RECORDED_LOCK}: has the output {path}, which is outside of the project")
    return stages


def outs_of(stages: Stages) -> Iterator[dict[str, Any]]:
    """All outputs."""
    return (out for entry in stages.values() for out in entry.get("outs", []))


def makers_of(stages: Stages) -> dict[str, str]:
    """Output -> the stage that makes it."""
    return {out["path"]: stage for stage, entry in stages.items() for out in entry.get("outs", [])}


def maker_of(makers: Mapping[str, str], path: str) -> str | None:
    """The stage that makes a file or folder of the project; None if no recorded stage does."""
    return next((stage for out, stage in makers.items() if is_within(path, out)), None)


def ancestors(stages: Stages, inputs: Iterable[str]) -> Stages:
    """The stages that the inputs come from, in topological order.

    The stage that records the code is left out: it depends on every file of code, and its results are kept themselves.
    """
    ordered: Stages = {}

    def add(paths: Iterable[str]) -> None:
        for name in sorted(stages):
            if name not in ordered and any(
                overlaps(path, out["path"]) and out["path"] != FOLDER.as_posix()
                for path in paths
                for out in stages[name].get("outs", [])
            ):
                add([dep["path"] for dep in stages[name].get("deps", [])])
                ordered[name] = stages[name]

    add(list(inputs))
    return ordered


def code_files(stages: Stages) -> list[Path]:
    """The files of code that the stages depend on."""
    deps = {Path(dep["path"]) for stage in stages.values() for dep in stage.get("deps", [])}
    return sorted(path for path in deps if path.parent == FOLDER)


def is_within(path: str, folder: str) -> bool:
    """Whether the paths are equal, or the second contains the first."""
    return path == folder or path.startswith(f"{folder}/")


def overlaps(path: str, other: str) -> bool:
    """Whether the paths are equal, or one contains the other."""
    return is_within(path, other) or is_within(other, path)


def is_outside(path: str) -> bool:
    """Whether a path that should be relative to the project may lead out of it."""
    return Path(path).is_absolute() or ".." in Path(path).parts


def hash_of(entry: LockEntry) -> str | None:
    """The hash that dvc.lock has of a dependency or output."""
    return entry.get(entry.get("hash", "md5"))
