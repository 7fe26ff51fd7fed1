import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from stages.publish.source import EDITED, CodeArchive, archive_source, find_secret, observe_git
from stages.runtime.atomic import file_sha256
from tests.publish.repository import commit_all, git, pretend_to_push, stage, write

MODULE, OTHER = "stages/train/loop.py", "stages/train/model.py"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose commit is on a remote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    write(
        {MODULE: "steps = 1\n", OTHER: "width = 1\n", "deploy/launch/cpu.yaml": "", "params.yaml": "", "notes.txt": "a"}
    )
    write(
        {
            "corpus/.gitignore": "*\n",
            ".gitignore": "*.ignored\n",
            "model/model.safetensors": "",
            "deploy/launch/old.yaml": "",
        }
    )
    commit_all()
    pretend_to_push()
    return tmp_path


def archived(stages: dict[str, Any], written: list[str] | None = None) -> CodeArchive:
    written = written or []
    return archive_source(observe_git(written), stages, written)


def unpacked(source: CodeArchive) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(source.content)) as archive:
        return {entry.name: archive.extractfile(entry).read().decode() for entry in archive}  # type: ignore[union-attr]


def test_a_commit_that_can_be_cloned_needs_no_archive() -> None:
    assert archived({"train": stage([MODULE, OTHER])}) == CodeArchive(b"", None, [])


def test_of_a_tree_that_differs_the_changed_and_the_needed_new_files_are_kept() -> None:
    write(
        {
            MODULE: "steps = 2\n",
            "stages/train/new.py": "new\n",
            "stages/publish/card.md.jinja": "# new\n",
            "problems.jsonl": "{}\n",
            "model/model.safetensors": "1",
        }
    )
    write({"private.txt": "mine", "corpus/mine.txt": "mine", "params.yaml": "edited", "a.ignored": ""})
    Path("deploy/launch/old.yaml").unlink()

    source = archived({"train": stage([MODULE, OTHER, "problems.jsonl", "corpus"])}, ["model"])

    assert unpacked(source) == {
        "problems.jsonl": "{}\n",
        MODULE: "steps = 2\n",
        "stages/publish/card.md.jinja": "# new\n",
        "stages/train/new.py": "new\n",
    }
    assert source.archive is not None
    assert source.archive.files == {path: file_sha256(Path(path)) for path in unpacked(source)}
    assert (source.archive.whole, source.archive.deleted) == (False, ["deploy/launch/old.yaml"])


def test_of_a_commit_that_is_nowhere_else_every_tracked_file_is_kept() -> None:
    git("commit", "-q", "--allow-empty", "-m", "not pushed")
    write({"private.txt": "mine"})

    source = archived({"train": stage([MODULE, OTHER])}, ["model"])

    assert source.archive is not None
    assert source.archive.whole
    assert set(unpacked(source)) == {
        *(MODULE, OTHER, "notes.txt"),
        *("deploy/launch/cpu.yaml", "deploy/launch/old.yaml", ".gitignore"),
    }


def test_without_a_repository_the_code_and_what_stages_depend_on_are_kept(project: Path) -> None:
    Path(".git").rename(project.parent / "git-of-another")
    write({"flows/cli.py": "run\n", "corpus/mine.txt": "mine", "problems.jsonl": "{}\n"})

    source = archived({"train": stage([MODULE, "corpus", "problems.jsonl"])}, ["model"])

    assert source.archive is not None
    assert source.archive.whole
    assert set(unpacked(source)) == {
        MODULE,
        OTHER,
        "flows/cli.py",
        "deploy/launch/cpu.yaml",
        "deploy/launch/old.yaml",
        "problems.jsonl",
    }


def test_code_that_was_edited_after_its_stage_ran_is_not_kept_as_what_ran() -> None:
    write({OTHER: "width = 2\n"})
    stages = {"train": stage([MODULE, OTHER])}
    write({MODULE: "steps = 2\n", OTHER: "width = 3\n"})

    source = archived(stages)

    assert source.archive is None  # of MODULE the commit has the version that ran
    assert [(entry.path, entry.reason) for entry in source.left_out] == [(OTHER, EDITED)]


def test_code_that_ran_and_was_deleted_since_is_in_the_commit_and_nothing_is_deleted() -> None:
    stages = {"train": stage([MODULE])}
    Path(MODULE).unlink()

    assert archived(stages) == CodeArchive(b"", None, [])


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        (
            MODULE,
            "key = 'ghp_" + "A1b2C3d4E5" * 3 + "f6G7h8'\n",
            "holds what looks like a credential: GitHub Token, line 1",
        ),
        (".env", "A=1\n", "a file of this name may hold credentials"),
        ("settings/server.pem", "", "a file of this name may hold credentials"),
        ("stages/table.py", "x" * 1_000_001, "larger than 1000000 bytes"),
        (
            ".dvc/config",
            "[core]\n    remote = store\n    access_key_id = me\n",
            "holds what looks like a credential: Credential in a configuration, line 3",
        ),
        (
            ".dvc/config",
            "['remote \"store\"']\n    url = https://me:pass@host/x\n",
            "holds what looks like a credential: a URL with a password, line 2",
        ),
        (
            "experiments/own.yaml",
            "base: {collect.sources: ['s3://bucket/a?X-Amz-Signature=ab']}\n",
            "holds what looks like a credential: a URL with the parameter `X-Amz-Signature`, line 1",
        ),
    ],
)
def test_what_may_be_secret_or_is_too_large_is_left_out_and_named(path: str, text: str, reason: str) -> None:
    write({path: text})

    source = archived({"train": stage([path])})

    assert source.archive is None
    assert [(entry.path, entry.reason) for entry in source.left_out] == [(path, reason)]


def test_the_value_of_a_token_in_the_environment_is_never_archived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "not-of-any-known-form")
    write({MODULE: "token = 'not-of-any-known-form'\n"})

    source = archived({"train": stage([MODULE])})

    assert source.archive is None
    assert source.left_out[0].reason.endswith("the value of HF_TOKEN, line 1")


def test_a_link_is_not_followed(project: Path) -> None:
    (project.parent / "outside.py").write_text("mine")
    Path(MODULE).unlink()
    Path(MODULE).symlink_to(project.parent / "outside.py")

    source = archived({"train": stage([MODULE])})

    assert source.archive is None
    assert source.left_out[0].reason == "is a link"


def test_a_name_that_is_not_utf_8_is_written_out(project: Path) -> None:
    name = os.fsdecode(b"stages/\xe9.py")
    write({name: "x = 1\n"})

    source = archived({"train": stage([name])})

    assert source.archive is not None
    assert list(source.archive.files) == ["stages/\\udce9.py"]
    assert list(unpacked(source).values()) == ["x = 1\n"]


def test_a_repository_in_the_repository_is_named_and_not_deleted() -> None:
    write({"library/a.py": "1"})
    for arguments in (
        ["init", "-q", "library"],
        ["-C", "library", "add", "-A"],
        ["-C", "library", "commit", "-qm", "a"],
    ):
        git(*arguments)
    git("add", "library")
    git("commit", "-qm", "with a library")
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    git("-C", "library", "commit", "-q", "--allow-empty", "-m", "b")

    source = archived({})

    assert source.archive is None
    assert [(left.path, left.reason) for left in source.left_out] == [("library", "is a folder of another repository")]


def test_the_archive_is_the_same_whenever_and_wherever_it_is_made() -> None:
    write({MODULE: "steps = 2\n"})
    first = archived({})
    Path(MODULE).touch()

    assert archived({}).content == first.content
    with tarfile.open(fileobj=io.BytesIO(first.content)) as archive:
        assert [(entry.mtime, entry.uid, entry.uname, oct(entry.mode)) for entry in archive] == [(0, 0, "", "0o644")]


GITHUB = "ghp_" + "A1b2C3d4E5" * 3 + "f6G7h8"
HUB = "hf_" + "AbCdEfGhIj" * 4


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"a = 1\nkey = '{GITHUB}'\n", "GitHub Token, line 2"),
        (HUB, "Hugging Face token, line 1"),
        ("-----BEGIN RSA " + "PRIVATE KEY-----\nMII\n", "Private Key, line 1"),
        ("\n\naws_key = 'AKIA" + "IOSFODNN7EXAMPLE'\n", "AWS Access Key, line 3"),
    ],
)
def test_a_credential_is_found_by_its_form(text: str, kind: str) -> None:
    assert find_secret(text.encode()) == kind


def test_hashes_and_ordinary_code_are_none() -> None:
    text = f"password = read('password')\nmd5: {'0123456789abcdef' * 2}\ntoken = {'x' * 40!r}\n\xff"

    assert find_secret(text.encode("latin-1")) is None


def test_a_line_may_be_allowed_by_name() -> None:
    assert find_secret(f"key = '{GITHUB}'  # pragma: allowlist secret\n".encode()) is None


@pytest.mark.parametrize("separator", ["\f", "\x85", "\u2028"])
def test_a_mark_in_the_line_above_allows_nothing(separator: str) -> None:
    text = f"a = 1{separator}  # pragma: allowlist secret\nkey = '{GITHUB}'\n"

    assert find_secret(text.encode()) == "GitHub Token, line 2"


def test_the_value_of_a_secret_variable_is_found_whatever_its_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", "correct horse")
    monkeypatch.setenv("OTHER_TOKEN", "true")

    assert find_secret(b"a\nb correct horse c: true\n") == "the value of MY_SERVICE_TOKEN, line 2"
    assert find_secret(b"true") is None


def test_a_password_in_a_url_is_found_where_urls_are_no_examples() -> None:
    text = b"a\nurl: http://bob:password@host/\n"

    assert find_secret(text) is None
    assert find_secret(text, in_urls=True) == "a URL with a password, line 2"
    assert find_secret(text.replace(b"host/", b"host/  # pragma: allowlist secret"), in_urls=True) is None
