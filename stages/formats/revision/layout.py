"""Where everything of a published revision is. Every path is written here, once.

    model.safetensors, config.json, tokenizer.json, ...   as in the model folder
    README.md, curves.png                          the model card and its picture
    .eval_results/*.yaml                           results of benchmarks of the Hub, as it reads them
    evaluation.json, evaluation_receipt.json       the evaluation, and what it was measured on, and how
    record/                                        what made the revision: `record_path` of a file of the project, and
        params.yaml, dvc.yaml, dvc.lock, code/..., requirements.lock, accepted.yaml, reports/...
        execution.json                             `Execution`: how the training was executed
        inputs.json                                `InputListing`: the data that went in
        source.tar.gz                              the code, where the commit alone does not have it
        data/...                                   inputs, only where `publish.include_data` asks for them
    provenance.json                                `Provenance`: the index, with the sha256 of every file above
    provenance.json.sig                            the signature of the index, only where a key is named

A revision's name follows from the files that are not observed (`is_observed`): the same model with the same card and
evaluation has the same name, whoever publishes it, wherever. The record of the first publication is kept.

In a folder destination, below `published/NAME`:

    revisions/REVISION/          as above
    runs/RUN/step-00000100/      an exported step of a run
    main -> revisions/REVISION   the current revision
    receipt.json                 `Receipt`: what the last publication did
    history.jsonl                every move of `main`

On the Hub a run is the branch `run_branch`, with one commit for each exported step and the model last; the tag REVISION
names the commit of the model, `step_tag` that of a step.
"""

import hashlib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

CARD = "README.md"
CURVES = "curves.png"
CARD_COMMAND = "stages.publish.render_card"
"""The module that writes both, and `inputs.json`, into a folder and publishes nothing."""
EVAL_RESULTS = ".eval_results"
EVALUATION = "evaluation.json"
EVALUATION_RECEIPT = "evaluation_receipt.json"
PROVENANCE = "provenance.json"
SIGNATURE = "provenance.json.sig"

RECORD = "record"
RECORDED_PARAMS = "record/params.yaml"
RECORDED_PIPELINE = "record/dvc.yaml"
RECORDED_LOCK = "record/dvc.lock"
RECORDED_REQUIREMENTS = "record/requirements.lock"
RECORDED_ACCEPTED = "record/accepted.yaml"
RECORDED_CODE = "record/code"
RECORDED_DATA = "record/data"
EXECUTION = "record/execution.json"
INPUTS = "record/inputs.json"
SOURCE_ARCHIVE = "record/source.tar.gz"

NOT_INDEXED = frozenset({PROVENANCE, SIGNATURE})
"""Files whose hashes the provenance does not have: itself, and what is made from it."""

SHIPPED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
"""Of the model folder: weights, configuration, tokenizer. No pickle, which could run code when loaded."""

REVISIONS = "revisions"
RUNS = "runs"
MAIN = "main"
RECEIPT = "receipt.json"
HISTORY = "history.jsonl"

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


def run_name(fingerprint: str) -> str:
    """The name of a training run, from the fingerprint of its checkpoints."""
    return fingerprint[:NAME_DIGITS]


def step_name(step: int) -> str:
    """The folder of an exported step, in `model/` and in `runs/RUN/`: 100 -> `step-00000100`."""
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
