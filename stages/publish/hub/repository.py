"""A repository on the Hub. What it holds is read before it is written, so what is asked for twice is done once.

The log of a branch is the record of what was done: each commit has a title that names its content. After a lost answer,
a kill or a rerun the commit is found by its title, its files are compared with what was to be sent, and nothing is sent
again. Not by `upload_folder`, which may split into several commits.
"""

import hashlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias

from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.hf_api import GitRefs, RepoFile

from stages.formats.revision.provenance import PROVENANCE, is_observed
from stages.publish.hub.client import SETTING, retried
from stages.publish.revision import Revision
from stages.runtime.atomic import file_sha256
from stages.runtime.entry import UserError

KEPT_BY_HUB = {".gitattributes"}
"""Files that the Hub adds to every repository."""

Tree: TypeAlias = Mapping[str, RepoFile]


@dataclass(frozen=True, slots=True)
class Repository:
    """One repository. Methods that read are one call; those that write may be repeated and retry by themselves."""

    api: HfApi
    name: str
    """`owner/name`."""
    kind: Literal["model", "dataset"] = "model"
    setting: str = SETTING
    """The parameter that names it, for messages."""

    @property
    def title(self) -> str:
        """For messages."""
        return f"{self.setting} = {self.name}"

    def head(self, branch: str) -> str:
        """The commit at the tip of a branch."""
        return str(self.api.repo_info(self.name, repo_type=self.kind, revision=branch).sha)

    def log(self, branch: str) -> list[tuple[str, str]]:
        """Commit and title, the newest first."""
        commits = self.api.list_repo_commits(self.name, repo_type=self.kind, revision=branch)
        return [(commit.commit_id, commit.title) for commit in commits]

    def tree(self, commit: str) -> dict[str, RepoFile]:
        """Every file of a commit, without the Hub's own."""
        entries = self.api.list_repo_tree(self.name, repo_type=self.kind, recursive=True, revision=commit)
        return {entry.path: entry for entry in entries if isinstance(entry, RepoFile) and entry.path not in KEPT_BY_HUB}

    def refs(self) -> GitRefs:
        """Branches and tags."""
        return self.api.list_repo_refs(self.name, repo_type=self.kind)

    def tags(self) -> dict[str, str]:
        """Tag -> commit."""
        return {ref.name: ref.target_commit for ref in self.refs().tags}

    @contextmanager
    def downloaded(self, commit: str, present: Container[str], path: str) -> Iterator[Path]:
        """A temporary folder with one file of a commit; empty where the commit does not have it."""
        with TemporaryDirectory() as folder:
            if path in present:
                self.api.hf_hub_download(self.name, path, repo_type=self.kind, revision=commit, local_dir=folder)
            yield Path(folder)

    def create(self, *, private: bool) -> None:
        """Make the repository unless it exists. Raises UserError if what should be private would go to a public one."""
        made_once(
            lambda: self.api.create_repo(self.name, repo_type=self.kind, private=private),
            lambda: self.api.repo_exists(self.name, repo_type=self.kind),
        )
        self.require_access(private=private)

    def require_access(self, *, private: bool) -> None:
        """Raise an error if the token may not write, or if what should be private would go to a public repository."""
        retried(lambda: self.api.auth_check(self.name, repo_type=self.kind, write=True))
        info = retried(lambda: self.api.repo_info(self.name, repo_type=self.kind))
        if private and not info.private:
            raise UserError(
                f"publish.private = true, but {self.name} exists and is public: nothing was sent; make it private, or "
                "set publish.private to false"
            )

    def branch_once(self, branch: str) -> None:
        """Make a branch unless it exists."""
        made_once(
            lambda: self.api.create_branch(self.name, repo_type=self.kind, branch=branch),
            lambda: branch in {ref.name for ref in self.refs().branches},
        )

    def commit_once(self, branch: str, title: str, content: Revision) -> str:
        """The commit of a branch that has this title and holds these files and no others, made unless it is there."""

        def commit() -> str:
            log = self.log(branch)
            for found in (number for number, other in log if other == title):
                present = self.tree(found)
                if not differing(present, content) and not extra(present, content):
                    return found
            head = log[0][0]
            return self.commit(branch, head, title, content, extra(self.tree(head), content, observed=True))

        return retried(commit)

    def commit(self, branch: str, head: str, title: str, content: Revision, deleted: Iterable[str]) -> str:
        """One commit with all these files, refused by the Hub if the branch has moved from `head`; verified."""
        added = [CommitOperationAdd(path, file) for path, file in content.files.items()]
        made = self.send(branch, head, title, [*added, *map(CommitOperationDelete, deleted)])
        self.require(made, content, [*content.files])
        return made

    def send(
        self,
        branch: str,
        head: str,
        title: str,
        operations: Sequence[CommitOperationAdd | CommitOperationCopy | CommitOperationDelete],
    ) -> str:
        """One commit on top of `head`; its id."""
        done = self.api.create_commit(
            self.name,
            operations,
            repo_type=self.kind,
            commit_message=title,
            revision=branch,
            parent_commit=head,
        )
        return str(done.oid)

    def copies(
        self, commit: str, tree: Tree, paths: Iterable[str], local: Revision
    ) -> list[CommitOperationAdd | CommitOperationCopy]:
        """What puts files of a commit, of which `tree` are all, on another branch. Large files are copied on the Hub.

        The client would download the small ones and send back what it got, even the login page of a network. So they
        come from `local` where it has them, else from the Hub, and are compared with the commit.
        """
        return [
            CommitOperationCopy(path, path, src_revision=commit)
            if tree[path].lfs is not None
            else CommitOperationAdd(path, self.small_file(commit, tree[path], local))
            for path in paths
        ]

    def small_file(self, commit: str, file: RepoFile, local: Revision) -> bytes:
        """The content of a file that git keeps. Raises ConnectionError where it does not arrive whole."""
        if file.path in local.files:
            data = local.files[file.path].read_bytes()
            if blob_id(data) == file.blob_id:
                return data
        with self.downloaded(commit, [file.path], file.path) as folder:
            data = (folder / file.path).read_bytes()
        if blob_id(data) != file.blob_id:
            raise ConnectionError(f"{file.path} of {commit} did not arrive whole")
        return data

    def tag_once(self, tag: str, commit: str) -> None:
        """Give a commit a tag. Raises UserError where another commit has it."""
        made_once(
            lambda: self.api.create_tag(self.name, repo_type=self.kind, tag=tag, revision=commit),
            lambda: tag in self.tags(),
        )
        if retried(self.tags).get(tag) != commit:
            raise UserError(f"{self.title}: the tag {tag} is at another commit; delete it there, then run again")

    def require(self, commit: str, content: Revision, paths: Iterable[str] | None = None) -> None:
        """List a commit again and compare every hash, of the files that name the content or of those in `paths`.

        Raises UserError that names the files that differ.
        """
        if wrong := differing(retried(lambda: self.tree(commit)), content, paths):
            raise UserError(
                f"{self.name} at {commit}: {', '.join(wrong)} did not arrive as sent, or was changed there; delete the "
                "branch and the tags of this run there, then run `dvc repro -f -s publish`"
            )


def made_once(make: Callable[[], object], exists: Callable[[], bool]) -> None:
    """Make something unless it exists.

    The Hub says 409 if it exists, and also if another write was in progress; 403 if the token may write a repository
    and not make one. And the client takes any page with status 200 for success, be it the login page of a network. So
    it is looked for, and not finding it is the failure.
    """

    def attempt() -> None:
        try:
            make()
        except HfHubHTTPError as error:
            if error.response.status_code not in (403, 409) or not exists():
                raise
        else:
            if not exists():
                raise ConnectionError("what was made is not there")

    retried(attempt)


def differing(present: Tree, content: Revision, paths: Iterable[str] | None = None) -> list[str]:
    """The files that are missing or not the same: of those in `paths`, else of those that name the content.

    Observed files differ from publication to publication; of the provenance, the presence counts.
    """
    compared = content.sha256 if paths is None else paths
    wrong = {path for path in compared if path not in present or not is_same(present[path], content, path)}
    wrong |= {path for path in content.files if path == PROVENANCE and path not in present}
    return sorted(wrong)


def extra(present: Tree, content: Revision, *, observed: bool = False) -> list[str]:
    """The files that are not part of the content; with `observed` also observed ones."""
    return sorted(path for path in present if path not in content.files and (observed or not is_observed(path)))


def is_same(file: RepoFile, content: Revision, path: str) -> bool:
    """Compare by sha256 what the Hub keeps as a large file, by git's blob id what it keeps in git."""
    if file.lfs is not None:
        return file.lfs.sha256 == (content.sha256.get(path) or file_sha256(content.files[path]))
    return file.blob_id == blob_id(content.files[path].read_bytes())


def blob_id(data: bytes) -> str:
    """As git names a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
