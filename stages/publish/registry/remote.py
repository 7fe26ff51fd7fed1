"""The revisions in a repository of the Hugging Face Hub: tags, and the commits of main."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path
from typing import TypeVar

from huggingface_hub import HfApi
from huggingface_hub.hf_api import RepoFile

from stages.formats.revision.execution import read_execution
from stages.formats.revision.layout import (
    EXECUTION,
    MAIN,
    NAME_DIGITS,
    PROVENANCE,
    run_branch,
    run_name,
)
from stages.formats.revision.provenance import read_provenance
from stages.publish.gate import Gate
from stages.publish.hub.client import TOKEN_VARIABLE, connect, explained
from stages.publish.hub.publication import move_main
from stages.publish.hub.repository import Repository as HubRepository
from stages.publish.hub.retries import configure_clients, retried
from stages.publish.registry.history import Move, Why
from stages.runtime.entry import UserError

Result = TypeVar("Result")

NAME = re.compile(rf"[0-9a-f]{{{NAME_DIGITS}}}")
STEP = re.compile(rf"(?P<name>{NAME.pattern})-step-(?P<step>[0-9]+)")

TITLES: dict[Why, str] = {"published": "Publish", "promoted": "Promote", "rolled back": "Roll back to"}
TITLE = re.compile(rf"(?P<why>{'|'.join(TITLES.values())}) (?P<name>{NAME.pattern})")
"""Of a commit on main: it says which move it was."""


class Repository:
    """A repository with revisions. Reading a public one needs no token."""

    freed = "belong to no revision any more; the Hub keeps what its branches and the history of main name"

    def __init__(self, location: str) -> None:
        """Raises UserError where nobody with this token finds the repository."""
        self.location = location
        configure_clients()
        self.api = HfApi(token=os.environ.get(TOKEN_VARIABLE, "").strip() or False)
        self.revisions  # noqa: B018 (asks the Hub)

    def asked(self, call: Callable[[HfApi], Result]) -> Result:
        """An answer of the Hub, asked for again after transient failures; an error says what to do."""
        with explained(self.api, self.location):
            return retried(lambda: call(self.api))

    @cached_property
    def tags(self) -> Mapping[str, str]:
        """Tag -> commit."""
        refs = self.asked(lambda api: api.list_repo_refs(self.location))
        return {ref.name: ref.target_commit for ref in refs.tags}

    @cached_property
    def revisions(self) -> Mapping[str, str]:
        """Revision -> commit."""
        return {name: commit for name, commit in self.tags.items() if NAME.fullmatch(name)}

    @cache  # noqa: B019 (lives as long as the command)
    def tree(self, commit: str) -> Mapping[str, RepoFile]:
        """The files of a commit."""
        return self.asked(lambda api: HubRepository(api, self.location).tree(commit))

    @cached_property
    def head(self) -> str:
        """The commit of main."""
        return self.asked(lambda api: HubRepository(api, self.location).head(MAIN))

    def changing(self) -> AbstractContextManager[None]:
        """Nothing to lock: a commit names its parent, and the Hub refuses it where main has moved."""
        return nullcontext()

    def names(self) -> list[str]:
        """By the time of their commits."""
        return sorted(self.revisions, key=lambda name: (self.published(name), name))

    def main(self) -> str | None:
        """The revision that the provenance on main names."""
        path = self.file_at(self.head, PROVENANCE)
        provenance = read_provenance(path) if path else None
        return provenance.revision if provenance else None

    def moves(self) -> list[Move]:
        """The commits of main that name a revision."""
        moves: list[Move] = []
        for commit in reversed(self.asked(lambda api: api.list_repo_commits(self.location, revision=MAIN))):
            if found := TITLE.match(commit.title):
                why = next(why for why, title in TITLES.items() if title == found["why"])
                before = moves[-1].to if moves else None
                moves.append(Move(at=commit.created_at, before=before, to=found["name"], why=why))
        return moves

    @cache  # noqa: B019
    def published(self, name: str) -> datetime:
        """The time of the commit."""
        commit = self.revisions[name]
        return self.asked(lambda api: api.list_repo_commits(self.location, revision=commit))[0].created_at

    def sizes(self, name: str) -> Mapping[str, int]:
        """As the Hub states them."""
        return {path: file.size for path, file in self.tree(self.revisions[name]).items()}

    def file(self, name: str, path: str) -> Path | None:
        """From the client's cache, where it is downloaded to."""
        return self.file_at(self.revisions[name], path)

    def file_at(self, commit: str, path: str) -> Path | None:
        """A file of a commit; None where the commit lacks it."""
        if path not in self.tree(commit):
            return None
        return Path(self.asked(lambda api: api.hf_hub_download(self.location, path, revision=commit)))

    def folder(self, name: str) -> Path:
        """In the client's cache, where it is downloaded to."""
        return self.snapshot(self.revisions[name])

    def snapshot(self, commit: str) -> Path:
        """All files of a commit, without what the Hub itself adds."""
        without = ".gitattributes"
        return Path(
            self.asked(lambda api: api.snapshot_download(self.location, revision=commit, ignore_patterns=without))
        )

    def steps(self, name: str) -> Mapping[int, str]:
        """The tags of the run's exported steps."""
        found = filter(None, map(STEP.fullmatch, self.tags))
        return {int(tag["step"]): tag[0] for tag in found if tag["name"] == name}

    def step_folder(self, name: str, step: int) -> Path:
        """In the client's cache, where it is downloaded to."""
        return self.snapshot(self.tags[self.steps(name)[step]])

    def run(self, name: str) -> str | None:
        """The name of the run that a revision comes from; None where it is not recorded."""
        path = self.file(name, EXECUTION)
        execution = read_execution(path) if path else None
        return run_name(execution.fingerprint) if execution else None

    def move_main(self, name: str, why: Why, gate: Gate | None) -> None:
        """One commit on main, whose large files are copied on the Hub. Files of others are kept."""
        with self.writing() as api:
            move_main(HubRepository(api, self.location), self.revisions[name], f"{TITLES[why]} {name}", gate)

    def freed_by_removing(self, name: str) -> int:
        """The bytes of files that no other revision has, nor main where it leads elsewhere."""
        leaving = self.leaving(name)
        kept = {
            file.blob_id for commit in self.commits(set(self.tags) - leaving) for file in self.tree(commit).values()
        }
        gone = {file.blob_id: file.size for commit in self.commits(leaving) for file in self.tree(commit).values()}
        if self.main() != name:
            kept |= {file.blob_id for file in self.tree(self.head).values()}
        return sum(size for blob, size in gone.items() if blob not in kept)

    def commits(self, tags: set[str]) -> set[str]:
        """Of these tags."""
        return {self.tags[tag] for tag in tags}

    def leaving(self, name: str) -> set[str]:
        """The tags that go with a revision."""
        return {name, *self.steps(name).values()}

    def remove(self, name: str) -> None:
        """Delete its steps' tags, the branch of its run where no other revision is of that run, then its own tag."""
        run = self.run(name)
        branch = run_branch(run or name)
        last = run is None or run not in {self.run(other) for other in self.revisions if other != name}
        with self.writing() as api:
            # Its own tag goes last: until then the same command finds the revision and continues.
            for tag in (*sorted(self.steps(name).values()), *([branch] if last else []), name):
                retried(lambda tag=tag: self.delete(api, tag))  # type: ignore[misc]

    def delete(self, api: HfApi, name: str) -> None:
        """Delete a tag or a branch, unless it is gone: the answer to an earlier attempt may have been lost."""
        refs = api.list_repo_refs(self.location)
        if name in {ref.name for ref in refs.tags}:
            api.delete_tag(self.location, tag=name)
        elif name in {ref.name for ref in refs.branches}:
            api.delete_branch(self.location, branch=name)

    @contextmanager
    def writing(self) -> Iterator[HfApi]:
        """The client with the token; afterwards everything is asked for anew."""
        api = connect(self.location)
        with explained(api, self.location):
            yield api
        for name in ("tags", "revisions", "head"):
            self.__dict__.pop(name, None)


def require_repository(location: str) -> None:
    """Raise UserError where this is no name of a repository."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", location):
        raise UserError(f"--hub {location}: expected owner/name")
