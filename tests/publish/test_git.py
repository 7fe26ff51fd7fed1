from pathlib import Path

import pytest

from stages.publish.source import files_of_dvc, observe_git, public_url
from stages.runtime.entry import UserError
from tests.publish.repository import commit_all, git, pretend_to_push, write


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return tmp_path


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("https://me:secret@example.com/a/b.git", "https://example.com/a/b.git"),
        ("https://token@example.com/a/b.git?key=1#x", "https://example.com/a/b.git"),
        ("ssh://git:secret@example.com:22/a/b", "ssh://git@example.com:22/a/b"),
        ("git@example.com:a/b.git", "git@example.com:a/b.git"),
        ("s3://bucket/folder", "s3://bucket/folder"),
        ("s3://bucket-[0-9]/*.jsonl", "s3://bucket-[0-9]/*.jsonl"),
        ("/home/me/b", None),
        ("../b", None),
        ("file:///home/me/b", None),
        ("local:///home/me/b", None),
        ("C:\\repositories\\b", None),
        ("", None),
    ],
)
def test_of_a_url_neither_credentials_nor_a_path_of_this_machine_are_published(url: str, public: str | None) -> None:
    assert public_url(url) == public


def test_outside_a_repository_and_before_the_first_commit_there_is_no_commit(folder: Path) -> None:
    assert observe_git([]) is None
    git("init", "-q")
    assert observe_git([]) is None


def test_without_git_no_record_is_made_that_takes_data_for_edited(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write({"data/a": "1"})
    monkeypatch.setenv("PATH", str(folder))

    with pytest.raises(UserError, match=r"git: not found, which says .* install it"):
        files_of_dvc(Path("data"))


def test_a_commit_is_on_the_remote_only_if_this_clone_has_seen_it_there(folder: Path) -> None:
    write({"a": "1"})
    commit_all()
    pretend_to_push()
    state = observe_git([])
    assert state is not None
    assert (state.origin, state.on_remote, state.dirty) == ("https://example.com/owner/name.git", True, False)

    git("commit", "-q", "--allow-empty", "-m", "not pushed")

    state = observe_git([])
    assert state is not None
    assert not state.on_remote


def test_a_remote_that_is_a_folder_of_this_machine_is_none(folder: Path) -> None:
    write({"a": "1"})
    commit_all()
    pretend_to_push(str(folder.parent / "elsewhere"))

    state = observe_git([])

    assert state is not None
    assert (state.origin, state.on_remote) == (None, False)


def test_paths_are_those_of_the_project_also_where_it_is_a_folder_of_its_repository(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write({"other": "1", "project/params.yaml": "1", "project/reports/out.json": "1"})
    commit_all()
    write({"other": "2", "project/params.yaml": "2", "project/reports/out.json": "2"})
    monkeypatch.chdir(folder / "project")

    state = observe_git(["reports/out.json"])

    assert state is not None
    assert (state.folder, state.changed) == ("project", ["params.yaml"])


def test_the_files_of_a_folder_are_those_that_dvc_counts(folder: Path) -> None:
    write({".dvcignore": "*.tmp\n", ".gitignore": "*\n", "data/a": "", "data/b.tmp": "", "data/deep/c": ""})
    write({"data/clone/.git/HEAD": "ref: refs/heads/main\n", "data/clone/d": ""})
    git("init", "-q", "data/clone")

    assert [path.as_posix() for path in files_of_dvc(Path("data"))] == ["data/a", "data/clone/d", "data/deep/c"]


def test_a_repository_that_git_refuses_to_read_is_not_taken_for_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write({"a": "1"})
    commit_all()
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")

    with pytest.raises(UserError, match=r"nothing was published: .*dubious ownership[\s\S]*safe\.directory"):
        observe_git([])
