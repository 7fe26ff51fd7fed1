"""Publishes to the Hugging Face Hub: a branch and a tag per revision, one commit with all files, then main.

Nobody who reads a branch or a tag sees half a revision, and a call that is repeated after a lost answer makes no second
commit: what a branch holds is read before it is written.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from httpx2 import TransportError
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.hf_api import RepoFile

from stages.publish.retries import HubError, passes, retried, underlying
from stages.publish.revision import Revision
from stages.runtime.entry import UnavailableError, UserError

TOKEN_VARIABLE = "HF_TOKEN"

KEPT_BY_HUB = {".gitattributes"}
"""Files that the Hub adds to every repository."""

Tree = Mapping[str, RepoFile]


def publish_to_hub(revision: Revision, repository: str, *, private: bool) -> dict[str, str]:
    """Bring a revision to a repository, unless it is there, and lead its main branch to it; the receipt's values.

    Raises UserError that says what to do if there is no token, no write access or no connection.
    """
    api = connect(repository)
    with explained(api, repository):
        retried(lambda: api.create_repo(repository, private=private, exist_ok=True))
        retried(lambda: api.auth_check(repository, write=True))
        require_private(api, repository, private)
        commit = tagged_commit(api, repository, revision.name) or publish_commit(api, repository, revision)
        require_published(api, repository, commit, revision)
        main = bring_to(api, repository, constants.DEFAULT_REVISION, revision)
        require_published(api, repository, main, revision)
    return {"destination": "hub", "place": repository, "commit": commit}


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
    """Turn the client's errors into messages that say what to do."""
    try:
        yield
    except HubError as error:
        reason = underlying(error)
        if isinstance(reason, HfHubHTTPError):
            kind = UnavailableError if passes(reason) else UserError
            raise kind(describe_refusal(reason, api, repository)) from None
        if isinstance(reason, TransportError):
            raise UnavailableError(
                f"publish.repository = {repository}: cannot reach {api.endpoint} ({reason}); run the same command "
                "again, what has arrived is not sent twice"
            ) from None
        raise


def describe_refusal(error: HfHubHTTPError, api: HfApi, repository: str) -> str:
    """What a status other than success means for the user."""
    status = error.response.status_code
    match status:
        case 401 | 403 | 404:
            return (
                f"publish.repository = {repository}: the token in {TOKEN_VARIABLE} may not write there (status "
                f"{status}); give it write access ({api.endpoint}/settings/tokens), or correct the name"
            )
        case _ if passes(error):
            return (
                f"publish.repository = {repository}: the Hub keeps answering with status {status}; run the same "
                "command again later, what has arrived is not sent twice"
            )
        case _:
            return f"publish.repository = {repository}: the Hub refused with status {status}: {error}"


def require_private(api: HfApi, repository: str, private: bool) -> None:
    """Raise UserError if what should be private would go to a public repository."""
    info = retried(lambda: api.model_info(repository))
    if private and not info.private:
        raise UserError(
            f"publish.private = true, but {repository} exists and is public: nothing was sent; make it private, or set "
            "publish.private to false"
        )


def tagged_commit(api: HfApi, repository: str, tag: str) -> str | None:
    """The commit of a revision that was published before."""
    refs = retried(lambda: api.list_repo_refs(repository))
    return next((ref.target_commit for ref in refs.tags if ref.name == tag), None)


def publish_commit(api: HfApi, repository: str, revision: Revision) -> str:
    """Commit a revision to a branch of its own, look at what arrived, then tag it."""
    branch = f"run-{revision.name}"
    retried(lambda: api.create_branch(repository, branch=branch, exist_ok=True))
    commit = bring_to(api, repository, branch, revision)
    require_published(api, repository, commit, revision)
    retried(lambda: api.create_tag(repository, tag=revision.name, revision=commit, exist_ok=True))
    return commit


def bring_to(api: HfApi, repository: str, branch: str, revision: Revision) -> str:
    """Make a branch hold the revision and nothing else, by one commit; that commit's id.

    Where the branch holds it already, that is the commit that stands there.
    """

    def commit_unless_there() -> str:
        head = api.model_info(repository, revision=branch).sha
        assert head is not None
        present = list_tree(api, repository, head)
        if not differences(present, revision):
            return head
        stale = sorted(set(present) - set(revision.files))
        # Refused if the branch has moved since it was read: then it is read again.
        done = api.create_commit(
            repository,
            [CommitOperationAdd(path, file) for path, file in revision.files.items()]
            + [CommitOperationDelete(path) for path in stale],
            commit_message=f"Publish {revision.name}",
            revision=branch,
            parent_commit=head,
        )
        return done.oid

    return retried(commit_unless_there)


def require_published(api: HfApi, repository: str, commit: str, revision: Revision) -> None:
    """List a commit again and compare every hash. Raises UserError that names the files that differ."""
    wrong = differences(retried(lambda: list_tree(api, repository, commit)), revision)
    if wrong:
        raise UserError(
            f"{repository} at {commit}: {', '.join(wrong)} did not arrive as sent, or was changed there; delete the "
            f"branch run-{revision.name} and the tag {revision.name}, then run `dvc repro -f publish`"
        )


def list_tree(api: HfApi, repository: str, commit: str) -> dict[str, RepoFile]:
    """Every file of a commit that is not the Hub's own."""
    entries = api.list_repo_tree(repository, recursive=True, revision=commit)
    return {entry.path: entry for entry in entries if isinstance(entry, RepoFile) and entry.path not in KEPT_BY_HUB}


def differences(present: Tree, revision: Revision) -> list[str]:
    """The files that are missing, too many or not the same.

    Of the provenance only its presence counts: it tells of the run that published first.
    """
    wrong = set(present) ^ set(revision.files)
    wrong |= {path for path in revision.sha256 if path in present and not is_same(present[path], revision, path)}
    return sorted(wrong)


def is_same(file: RepoFile, revision: Revision, path: str) -> bool:
    """Compare by sha256 what the Hub keeps as a large file, by git's own id what it keeps in git."""
    if file.lfs is not None:
        return file.lfs.sha256 == revision.sha256[path]
    content = revision.files[path].read_bytes()
    return file.blob_id == hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
