"""Publishes to the Hub: the data set, each exported step on the branch of its run, then the model on `main`, and tags.

`python -m stages.publish.hub` checks before hours of training that publishing will work: that no file of the code
contains a credential, and that the repositories can be created (empty) and written to.

A commit is atomic, and the Hub refuses it if its branch has moved since it was read. Existing commits are not repeated:
the index on `main` names its revision, and the titles on the branch of a run name its steps. So after a kill or an
error the same command continues. There are no retries here, because the flow runs the stage again.
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
"""The timeout of a request. By default the client waits forever."""

WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf"}
"""Suffixes of weight files; a branch with such a file contains a model."""

AnyReport = TypeVar("AnyReport", bound=Report)


class Tip(NamedTuple):
    """The newest commit of a branch, and the paths of its files."""

    commit: str
    paths: set[str]


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository. Its methods raise the client's errors."""

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
        """Create the repository, unless it exists, and check that the token has write access.

        Raises UserError if `private` and the repository is public.
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
        return Tip(commit, set(paths) - {".gitattributes"})  # the Hub adds this file

    def find(self, tip: Tip, path: str, kind: type[AnyReport]) -> AnyReport | None:
        """Read a report of a commit; None if it is missing or has another format."""
        if path not in tip.paths:
            return None
        with TemporaryDirectory() as folder:
            self.api.hf_hub_download(self.name, path, repo_type=self.kind, revision=tip.commit, local_dir=folder)
            return kind.find(Path(folder) / path)

    def commit(self, branch: str, tip: Tip, title: str, content: Revision, stale: Collection[str]) -> str:
        """Add all files of `content` to a branch and delete those in `stale`.

        Returns the commit, or that of `tip` if nothing differs. The Hub refuses it with status 412 if the branch is no
        longer at `tip`.
        """
        added = [CommitOperationAdd(path, file) for path, file in content.files.items()]
        for operation in added:
            if digest := content.sha256.get(operation.path_in_repo):  # saves hashing the file again
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
        """Tag a commit, unless the tag exists."""
        self.api.create_tag(self.name, repo_type=self.kind, tag=tag, revision=commit, exist_ok=True)


def publish_to_hub(revision: Revision, params: PublishParams, gate: Gate) -> Receipt:
    """Commit a revision and the steps of its run, unless they exist.

    Raises RefusedError if the model on main is better, UserError if there is no token or no write access,
    UnavailableError if the Hub does not answer or somebody else wrote to a branch at the same time.
    """
    model, *others = open_repositories(params)
    with explained(model.title):
        main = model.tip(MAIN)
        before = model.find(main, PROVENANCE, Provenance)
        present = before.revision if before else None
        if present != revision.name and any(Path(path).suffix in WEIGHT_SUFFIXES for path in main.paths):
            gate.check_not_worse(model.find(main, EVALUATION, Evaluation), model.name)
    # The model comes last, so that main moves only after everything else has succeeded.
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
            model.api.delete_tag(model.name, tag=revision.name)  # it is on an unsigned commit
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
    """Commit each exported step to the branch of its run, unless it is there, and tag it. Returns step -> commit."""
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
    """Commit the cleaned documents to main of a data set, with a tag that names the content. Returns the commit."""
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
    """README.md of the data set: how to load it, and its contents by license and by source."""
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
        "The documents keep the licenses of their sources.\n\n"
        f'```python\nfrom datasets import load_dataset\n\ndocuments = load_dataset("{repository}")\n```\n\n{sections}'
    )


def split_tables(title: str, split: SplitSize) -> str:
    """Tables of a split's documents by license and by source, the largest first."""
    total = f"{split.total.documents:,} documents, {split.total.bytes:,} bytes of text, {split.tokens:,} tokens"
    return (
        f"## {title}\n\n{total}.\n\n"
        f"{markdown_table(('license', 'documents', 'bytes'), by_license(split))}\n"
        f"{markdown_table(('source', 'documents', 'bytes', 'license'), by_source(split))}"
    )


def open_repositories(params: PublishParams) -> list[Repository]:
    """Create the repositories of the model and of the data set, unless they exist.

    Raises UserError if one of them cannot be written to.
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
    """The client with the token in HF_TOKEN (one stored on this machine is not used), timeouts and no telemetry.

    Raises UserError if there is no token or the client is offline.
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
    """Check the code, then create and check the repositories in the parameters."""
    params = read_section("publish", PublishParams)
    check_code()
    if params.repository is not None:
        open_repositories(params)


if __name__ == "__main__":
    run_stage(main)
