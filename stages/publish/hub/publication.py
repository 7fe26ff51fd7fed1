"""Publishes to the Hugging Face Hub: a branch and a tag per revision, one commit with all files, then main.

No reader of a branch or a tag sees half a revision, and a call that is repeated after a lost answer makes no second
commit: what a branch holds is read before it is written. Not by `upload_folder`, which may split into several commits.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from json import JSONDecodeError
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.hf_api import RepoFile

from stages.formats.revision.layout import EVALUATION, MAIN, PROVENANCE
from stages.formats.revision.provenance import read_provenance
from stages.formats.revision.receipt import Receipt
from stages.publish.gate import Gate, published_evaluation
from stages.publish.retries import (
    HubError,
    TimeLimitError,
    configure_clients,
    retried,
    time_limit,
    transient,
    underlying,
    within,
)
from stages.publish.revision import Revision
from stages.runtime.entry import UnavailableError, UserError

TOKEN_VARIABLE = "HF_TOKEN"

AGAIN = "run the same command again, files that arrived are not sent twice"

KEPT_BY_HUB = {".gitattributes"}
"""Files that the Hub adds to every repository."""

WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf"}
"""A main branch with such a file holds a model."""

Tree: TypeAlias = Mapping[str, RepoFile]


def publish_to_hub(revision: Revision, repository: str, gate: Gate, *, private: bool) -> Receipt:
    """Upload a revision, unless it is there, and let the repository's main branch hold it.

    Raises RefusedError if what main holds now is better; UserError that says what to do if there is no token, no write
    access or no connection.
    """
    configure_clients()
    api = connect(repository)
    limit = time_limit(revision.size)
    with explained(api, repository):
        try:
            commit = within(limit, lambda: publish(api, revision, repository, gate, private=private))
        except TimeLimitError:
            raise UnavailableError(
                f"publish.repository = {repository}: not finished after {limit / 60:.0f} minutes; {AGAIN}"
            ) from None
    return Receipt(
        destination="hub", location=repository, revision=revision.name, commit=commit, sha256=revision.sha256
    )


def publish(api: HfApi, revision: Revision, repository: str, gate: Gate, *, private: bool) -> str:
    """Branch, commit, tag, main; the commit that the tag names."""
    retried(lambda: api.create_repo(repository, private=private, exist_ok=True))
    retried(lambda: api.auth_check(repository, write=True))
    require_private(api, repository, private)
    retried(lambda: check_gate(api, repository, revision, gate))
    commit = tagged_commit(api, repository, revision.name) or publish_commit(api, repository, revision)
    require_published(api, repository, commit, revision)
    main = move_main(api, repository, revision, gate)
    require_published(api, repository, main, revision)
    return commit


def connect(repository: str) -> HfApi:
    """The Hub's client with the token from the environment; a token that is stored on this machine is not used."""
    if constants.HF_HUB_OFFLINE:
        raise UserError(
            f"publish.repository = {repository}: HF_HUB_OFFLINE is set, so nothing can be published to the Hub; unset "
            "it, or set publish.repository to null"
        )
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        raise UserError(
            f"publish.repository = {repository}: no token; put one with write access to it in {TOKEN_VARIABLE} "
            f"({constants.ENDPOINT}/settings/tokens), or set publish.repository to null"
        )
    return HfApi(token=token)


@contextmanager
def explained(api: HfApi, repository: str) -> Iterator[None]:
    """Turn the clients' errors into messages that say what to do."""
    try:
        yield
    except HubError as error:
        kind = UnavailableError if transient(error) else UserError
        raise kind(f"publish.repository = {repository}: {describe(underlying(error), api)}") from None


def describe(error: BaseException, api: HfApi) -> str:
    """What an error of the clients means for the user, in one line."""
    details = " ".join(str(error).split())
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if status in (401, 403, 404) or isinstance(error, PermissionError):
        return (
            f"the token in {TOKEN_VARIABLE} may not write there ({f'status {status}' if status else details}); give it "
            f"write access ({api.endpoint}/settings/tokens), or correct the name"
        )
    if status is not None and not transient(error):
        return f"the Hub refused with status {status}: {details}"
    if status is not None:
        reason = f"the Hub keeps answering with status {status}"
    elif isinstance(error, JSONDecodeError):
        reason = f"{api.endpoint} does not answer as a Hub does (a login page of the network?)"
    else:
        reason = f"cannot reach {api.endpoint} or its storage ({details})"
    return f"{reason}; {AGAIN}"


def require_private(api: HfApi, repository: str, private: bool) -> None:
    """Raise UserError if what should be private would go to a public repository."""
    info = retried(lambda: api.model_info(repository))
    if private and not info.private:
        raise UserError(
            f"publish.private = true, but {repository} exists and is public: nothing was sent; make it private, or set "
            "publish.private to false"
        )


def check_gate(api: HfApi, repository: str, revision: Revision, gate: Gate) -> None:
    """Raise RefusedError if main holds a model that this one may not replace."""
    head = head_of(api, repository, MAIN)
    present = list_tree(api, repository, head)
    if any(Path(path).suffix in WEIGHT_SUFFIXES for path in present) and differing(present, revision):
        with downloaded(api, repository, head, present, EVALUATION) as folder:
            gate.check_not_worse(published_evaluation(folder), repository)


def tagged_commit(api: HfApi, repository: str, tag: str) -> str | None:
    """The commit of a revision that was published before."""
    refs = retried(lambda: api.list_repo_refs(repository))
    return next((ref.target_commit for ref in refs.tags if ref.name == tag), None)


def publish_commit(api: HfApi, repository: str, revision: Revision) -> str:
    """Commit a revision to its own branch, verify what arrived, then tag it."""
    branch = f"run-{revision.name}"
    retried(lambda: api.create_branch(repository, branch=branch, exist_ok=True))
    commit = retried(lambda: commit_unless_there(api, repository, branch, revision))
    require_published(api, repository, commit, revision)
    retried(lambda: api.create_tag(repository, tag=revision.name, revision=commit, exist_ok=True))
    # The client takes a 409 for "exists"; it may also be that another write was in progress.
    if tagged_commit(api, repository, revision.name) != commit:
        raise UnavailableError(f"publish.repository = {repository}: the tag {revision.name} was not made; {AGAIN}")
    return commit


def commit_unless_there(api: HfApi, repository: str, branch: str, revision: Revision) -> str:
    """Make the revision's own branch hold the revision and nothing else, by one commit; that commit's id."""
    head = head_of(api, repository, branch)
    present = list_tree(api, repository, head)
    extra = sorted(set(present) - set(revision.files))
    return (
        head
        if not extra and not differing(present, revision)
        else commit(api, repository, branch, head, revision, extra)
    )


def move_main(api: HfApi, repository: str, revision: Revision, gate: Gate) -> str:
    """Make main hold the revision instead of the one before; that commit's id. Files of others are kept."""

    def move() -> str:
        head = head_of(api, repository, MAIN)
        present = list_tree(api, repository, head)
        with downloaded(api, repository, head, present, PROVENANCE) as folder:
            before = read_provenance(folder / PROVENANCE)
        published = {PROVENANCE, *before.files} if before else set()
        stale = sorted((published & set(present)) - set(revision.files))
        if not stale and not differing(present, revision):
            return head
        check_gate(api, repository, revision, gate)
        announce(repository, present, published, revision)
        return commit(api, repository, MAIN, head, revision, stale)

    return retried(move)


def announce(repository: str, present: Tree, published: set[str], revision: Revision) -> None:
    """Say what happens to files on main that no earlier publication has put there."""
    foreign = set(present) - published
    if kept := sorted(foreign - set(revision.files)):
        print(f"{repository}: main keeps files that were not published from here: {', '.join(kept)}")
    if replaced := sorted(foreign & set(revision.files)):
        print(f"{repository}: main had its own {', '.join(replaced)}: replaced, still in the repository's history")


def commit(api: HfApi, repository: str, branch: str, head: str, revision: Revision, deleted: list[str]) -> str:
    """One commit with all files of a revision, refused by the Hub if the branch has moved from `head`; its id."""
    done = api.create_commit(
        repository,
        [CommitOperationAdd(path, file) for path, file in revision.files.items()]
        + [CommitOperationDelete(path) for path in deleted],
        commit_message=f"Publish {revision.name}",
        revision=branch,
        parent_commit=head,
    )
    return str(done.oid)


def require_published(api: HfApi, repository: str, commit: str, revision: Revision) -> None:
    """List a commit again and compare every hash. Raises UserError that names the files that differ."""
    wrong = differing(retried(lambda: list_tree(api, repository, commit)), revision)
    if wrong:
        raise UserError(
            f"{repository} at {commit}: {', '.join(wrong)} did not arrive as sent, or was changed there; delete the "
            f"branch run-{revision.name} and the tag {revision.name}, then run `dvc repro -f publish`"
        )


def head_of(api: HfApi, repository: str, branch: str) -> str:
    """The commit at the tip of a branch."""
    return str(api.model_info(repository, revision=branch).sha)


def list_tree(api: HfApi, repository: str, commit: str) -> dict[str, RepoFile]:
    """Every file of a commit, without the Hub's own."""
    entries = api.list_repo_tree(repository, recursive=True, revision=commit)
    return {entry.path: entry for entry in entries if isinstance(entry, RepoFile) and entry.path not in KEPT_BY_HUB}


@contextmanager
def downloaded(api: HfApi, repository: str, commit: str, present: Tree, path: str) -> Iterator[Path]:
    """A temporary folder with one file of a commit; empty where the commit does not have it."""
    with TemporaryDirectory() as folder:
        if path in present:
            api.hf_hub_download(repository, path, revision=commit, local_dir=folder)
        yield Path(folder)


def differing(present: Tree, revision: Revision) -> list[str]:
    """The files of a revision that are missing or not the same. Of the provenance only its presence counts."""
    wrong = set(revision.files) - set(present)
    wrong |= {path for path in revision.sha256 if path in present and not is_same(present[path], revision, path)}
    return sorted(wrong)


def is_same(file: RepoFile, revision: Revision, path: str) -> bool:
    """Compare by sha256 what the Hub keeps as a large file, by git's blob id what it keeps in git."""
    if file.lfs is not None:
        return file.lfs.sha256 == revision.sha256[path]
    content = revision.files[path].read_bytes()
    return file.blob_id == hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
