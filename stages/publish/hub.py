"""Publishes to the Hub: the data set, each exported step on the branch of its run, then the model on `main`, and tags.

`python -m stages.publish.hub` checks before hours of training that all of it may be written: that no file of the code
holds a credential; and it makes the private and empty repositories, which answers every question of names and rights.

A commit is made whole or not at all, and the Hub refuses it if its branch has moved since it was read. What is there is
not made again: the index on `main` names its revision, and the titles on the branch of a run name its steps. So after a
kill or an error the same command continues; there are no retries here, the flow runs the stage again.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, TypeVar

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    DatasetCardData,
    HfApi,
    constants,
    set_client_factory,
)
from huggingface_hub.utils._http import default_client_factory

from stages.formats.documents import CLEAN, require_documents
from stages.formats.evaluation.report import Evaluation
from stages.formats.pages import escape, markdown_table
from stages.formats.reports import Report
from stages.formats.revision.provenance import (
    CARD,
    EVALUATION,
    MAIN,
    PROVENANCE,
    SIGNATURE_FILE,
    Receipt,
    is_observed,
    run_branch,
    step_tag,
)
from stages.formats.revision.statement import Provenance
from stages.formats.sources import SplitSize, by_license, by_source, read_split
from stages.formats.tokens import SPLITS, TOKENS, TRAIN, VALIDATION
from stages.publish.params import PublishParams
from stages.publish.revision import Gate, Revision, card_head, exported_steps, name_revision, run_of_model
from stages.publish.source import check_code
from stages.runtime.errors import UserError
from stages.runtime.hub import explained
from stages.runtime.section import read_section
from stages.runtime.stage import run_stage

REQUEST_SECONDS = 60.0
"""Silence after which a request fails. The client itself would wait for ever."""

KEPT_BY_HUB = {".gitattributes"}
"""Files that the Hub adds to every repository."""

WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf"}
"""Endings of weight files: a main branch that has one holds a model."""

AnyReport = TypeVar("AnyReport", bound=Report)


class Tip(NamedTuple):
    """The newest commit of a branch, and the paths of its files."""

    commit: str
    paths: set[str]


@dataclass(frozen=True, slots=True)
class Repository:
    """One repository. Its methods raise the client's errors."""

    api: HfApi
    name: str
    """`owner/name`."""
    kind: Literal["model", "dataset"]
    setting: str
    """The parameter that names it."""

    @property
    def title(self) -> str:
        """The beginning of messages."""
        return f"{self.setting} = {self.name}, as the user of HF_TOKEN"

    def open(self, *, private: bool) -> None:
        """Make the repository, unless it exists, and check that the token may write to it.

        Raises UserError if something private would go to a public repository.
        """
        self.api.create_repo(self.name, repo_type=self.kind, private=private, exist_ok=True)
        self.api.auth_check(self.name, repo_type=self.kind, write=True)
        if private and not self.api.repo_info(self.name, repo_type=self.kind).private:
            raise UserError(
                f"publish.private = true, but {self.name} exists and is public: nothing was sent; make it private, or "
                "set publish.private to false"
            )

    def tip(self, branch: str) -> Tip:
        """Read a branch."""
        commit = str(self.api.repo_info(self.name, repo_type=self.kind, revision=branch).sha)
        paths = self.api.list_repo_files(self.name, repo_type=self.kind, revision=commit)
        return Tip(commit, set(paths) - KEPT_BY_HUB)

    def find(self, tip: Tip, path: str, kind: type[AnyReport]) -> AnyReport | None:
        """Read a report of a commit; None if there is none of this format."""
        if path not in tip.paths:
            return None
        with TemporaryDirectory() as folder:
            self.api.hf_hub_download(self.name, path, repo_type=self.kind, revision=tip.commit, local_dir=folder)
            return kind.find(Path(folder) / path)

    def commit(self, branch: str, tip: Tip, title: str, content: Revision, stale: Collection[str]) -> str:
        """Add all files of `content` to a branch and delete those in `stale`; the commit, or `tip` if nothing differs.

        The Hub refuses it with status 412 if the branch is no longer at `tip`.
        """
        added = [CommitOperationAdd(path, file) for path, file in content.files.items()]
        for operation in added:
            if digest := content.sha256.get(operation.path_in_repo):  # else the client reads the file to hash it
                operation.upload_info.sha256 = bytes.fromhex(digest)
        done = self.api.create_commit(
            self.name,
            [*added, *map(CommitOperationDelete, sorted(stale))],
            repo_type=self.kind,
            commit_message=title,
            revision=branch,
            parent_commit=tip.commit,
        )
        return str(done.oid)

    def tag(self, tag: str, commit: str) -> None:
        """Give a commit a tag, unless another commit has it."""
        self.api.create_tag(self.name, repo_type=self.kind, tag=tag, revision=commit, exist_ok=True)


def publish_to_hub(revision: Revision, params: PublishParams, gate: Gate) -> Receipt:
    """Commit a revision and the steps of its run, unless they are there.

    Raises RefusedError if the model on main is better, UserError if there is no token or no write access,
    UnavailableError if the Hub does not answer or somebody else has written to a branch meanwhile.
    """
    model, *others = open_repositories(params)
    with explained(model.title):
        main = model.tip(MAIN)
        before = model.find(main, PROVENANCE, Provenance)
        present = before.revision if before else None
        if present != revision.name and any(Path(path).suffix in WEIGHT_SUFFIXES for path in main.paths):
            gate.check_not_worse(model.find(main, EVALUATION, Evaluation), model.name)
    # The model is the last one: main moves when nothing else can fail.
    data_set = publish_data_set(others[0], params) if others else None
    run = run_of_model()
    with explained(model.title):
        steps = publish_steps(model, run or revision.name, revision.name)
        commit = main.commit
        unsigned = SIGNATURE_FILE in revision.files and SIGNATURE_FILE not in main.paths
        if present != revision.name or unsigned:
            ours = before.files if before else {}
            stale = {path for path in main.paths if path in ours or is_observed(path)} - revision.files.keys()
            commit = model.commit(MAIN, main, f"Publish {revision.name}", revision, stale)
        model.tag(revision.name, commit)
        if SIGNATURE_FILE in revision.files and SIGNATURE_FILE not in model.tip(revision.name).paths:
            model.api.delete_tag(model.name, tag=revision.name)  # of a commit made before the signature
            model.tag(revision.name, commit)
    return Receipt(
        destination="hub",
        location=model.name,
        revision=revision.name,
        commit=commit,
        run=run,
        steps=steps,
        data_set=data_set,
    )


def publish_steps(model: Repository, run: str, revision: str) -> dict[int, str]:
    """Commit each exported step to the branch of its run, unless it is there: step -> commit. A tag names each."""
    if not (steps := exported_steps()):
        return {}
    branch = run_branch(run)
    model.api.create_branch(model.name, branch=branch, exist_ok=True)
    made = {commit.title: commit.commit_id for commit in model.api.list_repo_commits(model.name, revision=branch)}
    commits = {}
    for step in steps:
        if (commit := made.get(step.title(run))) is None:
            tip = model.tip(branch)
            commit = model.commit(branch, tip, step.title(run), step.content, tip.paths - step.content.files.keys())
        model.tag(step_tag(revision, step.number), commit)
        commits[step.number] = commit
    return commits


def publish_data_set(repository: Repository, params: PublishParams) -> str:
    """Make main of a data set hold the cleaned documents; the commit, with a tag that names the content."""
    with TemporaryDirectory() as folder, explained(repository.title):
        shards = {f"data/{split}/{shard.name}": shard for split in SPLITS for shard in require_documents(CLEAN / split)}
        card = Path(folder) / CARD
        card.write_text(data_card(params, repository.name), encoding="utf-8")
        content = name_revision(shards | {CARD: card})
        main = repository.tip(MAIN)
        ours = (f"data/{split}/b*.parquet" for split in SPLITS)
        stale = {path for pattern in ours for path in main.paths - content.files.keys() if fnmatchcase(path, pattern)}
        commit = repository.commit(MAIN, main, f"Publish {content.name}", content, stale)
        repository.tag(content.name, commit)
        return commit


def data_card(params: PublishParams, repository: str) -> str:
    """README.md of the data set: how to load it, and what it holds by licence and by source."""
    files = [{"split": split, "path": f"data/{split}/*.parquet"} for split in SPLITS]
    head = card_head()
    metadata = DatasetCardData(
        language=head.get("language"),
        license="other",
        license_name="by-document",
        pretty_name=f"Documents of {params.name}",
        tags=head.get("tags"),
        task_categories=["text-generation"],
        configs=[{"config_name": "default", "data_files": files}],
    )
    titles = {TRAIN: "The model is trained on", VALIDATION: "Held out to measure it"}
    sections = "\n".join(split_tables(titles[split], read_split(TOKENS / split)) for split in SPLITS)
    return (
        f"---\n{metadata.to_yaml()}\n---\n\n# Documents of {escape(params.name)}\n\n"
        "Collected, filtered, deduplicated and split. Each row is a document: `id` (sha256 of the text), `source`, "
        "`revision` and `path` (where it comes from), `license` (SPDX; empty if unknown), `text`. "
        "The documents keep the licences of their sources.\n\n"
        f'```python\nfrom datasets import load_dataset\n\ndocuments = load_dataset("{repository}")\n```\n\n{sections}'
    )


def split_tables(title: str, split: SplitSize) -> str:
    """One split's documents by licence and by source, the largest first."""
    total = f"{split.total.documents:,} documents, {split.total.bytes:,} bytes of text, {split.tokens:,} tokens"
    return (
        f"## {title}\n\n{total}.\n\n"
        f"{markdown_table(('licence', 'documents', 'bytes'), by_license(split))}\n"
        f"{markdown_table(('source', 'documents', 'bytes', 'licence'), by_source(split))}"
    )


def open_repositories(params: PublishParams) -> list[Repository]:
    """Make the repositories of the model and of the data set that the parameters name, unless they exist.

    Raises UserError if one of them cannot be written to. They are empty until something is published.
    """
    assert params.repository is not None
    api = connect(f"publish.repository = {params.repository}")
    repositories = [Repository(api, params.repository, "model", "publish.repository")]
    if params.dataset_repository:
        repositories.append(Repository(api, params.dataset_repository, "dataset", "publish.dataset_repository"))
    for repository in repositories:
        with explained(repository.title):
            repository.open(private=params.private)
    return repositories


def connect(what: str) -> HfApi:
    """Return the client, with the token of the environment; a token that is stored on this machine is not used.

    Every request has a timeout, and no telemetry is sent.
    """
    if constants.HF_HUB_OFFLINE:
        raise UserError(f"{what}: HF_HUB_OFFLINE is set, so nothing can be published to the Hub; unset it")
    if not (token := os.environ.get("HF_TOKEN", "").strip()):
        raise UserError(
            f"{what}: no token; put one with write access in HF_TOKEN ({constants.ENDPOINT}/settings/tokens), or set "
            "publish.repository to null"
        )

    def with_timeout() -> Any:
        client = default_client_factory()
        client.timeout = REQUEST_SECONDS
        return client

    set_client_factory(with_timeout)
    constants.HF_HUB_DISABLE_TELEMETRY = True
    os.environ.setdefault("HF_XET_TELEMETRY_ENABLED", "false")
    return HfApi(token=token)


def main() -> None:
    """Check the code, then make and check every repository that the parameters name."""
    params = read_section("publish", PublishParams)
    check_code()
    if params.repository is not None:
        open_repositories(params)


if __name__ == "__main__":
    run_stage(main)
