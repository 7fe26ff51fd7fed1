import os
import shutil
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from stages.formats.revision.statement import GitState
from stages.publish.source import archive_source, find_secret, public_url
from stages.runtime.errors import UserError
from tests.publish.repository import commit_all, contents, git, write

PACKED = Path("source.tar.gz")
MODULE, OTHER = "stages/train/loop.py", "stages/train/model.py"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with code, settings and a corpus that git ignores."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    write({MODULE: "steps = 1\n", OTHER: "width = 1\n", "pyproject.toml": "", "params.yaml": "", "notes.txt": "a"})
    write({"dvc.lock": "of the last run"})
    write({"problems/a.jsonl": "{}\n", ".gitignore": "/corpus/\n*.ignored\n", ".dvcignore": "*.tmp\n"})
    commit_all()
    return tmp_path


def reading(*paths: str) -> dict[str, Any]:
    """The entry of a stage that has read these files."""
    return {"train": {"deps": [{"path": path} for path in paths]}}


def archived(*paths: str, include_data: bool = False) -> tuple[dict[str, str], GitState]:
    state = archive_source(reading(*paths), PACKED, include_data=include_data)
    with tarfile.open(PACKED) as archive:
        return {path: text.decode() for path, text in contents(archive).items()}, state


def test_the_archive_has_the_code_that_git_has_or_would_add_and_of_the_inputs_what_git_has() -> None:
    write({MODULE: "steps = 2\n", "flows/cli.py": "new\n", "stages/a.ignored": "", "notes.txt": "b"})
    write({"corpus/mine.txt": "mine", "problems/b.jsonl": "", "model/model.safetensors": "1", "private.txt": "mine"})
    write({"corpus.dvc": "outs: []\n"})
    git("add", "corpus.dvc")
    Path(OTHER).unlink()

    files, state = archived("problems", "corpus")

    assert files == {
        ".dvcignore": "*.tmp\n",
        MODULE: "steps = 2\n",
        "corpus.dvc": "outs: []\n",
        "flows/cli.py": "new\n",
        "problems/a.jsonl": "{}\n",
        "pyproject.toml": "",
    }
    assert state == GitState(commit=git("rev-parse", "HEAD"), dirty=True, origin=None)


def test_inputs_that_git_does_not_have_are_there_only_by_choice() -> None:
    write({"corpus/mine.txt": "mine", "corpus/a.tmp": "", "elsewhere.txt": ""})

    assert "corpus/mine.txt" not in archived("corpus")[0]
    assert {*archived("corpus", include_data=True)[0]} - {*archived("corpus")[0]} == {"corpus/mine.txt"}


def test_a_change_that_is_in_no_revision_makes_no_tree_dirty() -> None:
    git("remote", "add", "origin", "https://someone:token@example.com/owner/name.git")
    write({"notes.txt": "b", "more-notes.txt": "c", "dvc.lock": "of this run"})

    _, state = archived()

    assert (state.dirty, state.origin) == (False, "https://example.com/owner/name.git")
    for path in ("stages/new.py", "params.yaml", "problems/a.jsonl"):
        before = Path(path).read_bytes() if Path(path).exists() else None
        write({path: "changed"})
        assert archived("problems")[1].dirty
        Path(path).unlink() if before is None else Path(path).write_bytes(before)


def test_in_a_folder_of_its_repository_a_project_has_paths_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    write({"inner/stages/a.py": "a", "inner/pyproject.toml": ""})
    monkeypatch.chdir("inner")

    assert {*archived()[0]} == {"stages/a.py", "pyproject.toml"}


@pytest.mark.parametrize("prepared", ["nothing", "no commit", "of another user"])
def test_without_a_commit_nothing_is_published_and_git_says_why(monkeypatch: pytest.MonkeyPatch, prepared: str) -> None:
    if prepared == "of another user":
        monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    else:
        shutil.rmtree(".git")
    if prepared == "no commit":
        git("init", "-q")
    said = {"nothing": "not a git repository", "no commit": "HEAD", "of another user": r"safe\.directory"}[prepared]

    with pytest.raises(UserError, match=rf"nothing was published: .*[\s\S]*{said}[\s\S]*`git init`"):
        archived()


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("problems/.env", "A=1\n", "its name"),
        ("problems/server.pem", "", "its name"),
        (".dvc/config", "[core]\n    access_key_id = me\n", "Credential in a configuration, line 2"),
        (".dvc/config", "    url = https://me:pass@host/x\n", "a URL with a password, line 1"),
        (MODULE, "token = 'not-of-any-known-form'\n", "the value of HF_TOKEN, line 1"),
    ],
)
def test_a_file_that_may_hold_a_credential_is_refused(
    monkeypatch: pytest.MonkeyPatch, path: str, text: str, reason: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", "not-of-any-known-form")
    write({path: text})
    git("add", "-f", path)

    with pytest.raises(UserError, match=rf"^{path}: has what looks like a credential \({reason}\)"):
        archived("problems")


def test_urls_with_passwords_are_examples_in_data() -> None:
    write({"problems/a.json": '{"a": "http://bob:password@host/"}'})
    git("add", "-A")

    assert "problems/a.json" in archived("problems")[0]


def test_a_link_and_another_repository_are_refused(project: Path) -> None:
    Path("stages/link.py").symlink_to(project.parent / "outside.py")
    with pytest.raises(UserError, match=r"^stages/link\.py: is a link or a nested repository"):
        archived()
    Path("stages/link.py").unlink()
    write({"stages/library/a.py": "1"})
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "a"]):
        git("-C", "stages/library", *arguments)
    with pytest.raises(UserError, match=r"^stages/library/?: is a link or a nested repository"):
        archived()


def test_a_name_that_is_not_utf_8_is_archived() -> None:
    name = os.fsdecode(b"stages/\xe9.py")
    write({name: "x = 1\n"})

    assert archived()[0][name] == "x = 1\n"


def test_the_archive_is_the_same_whenever_and_wherever_it_is_made() -> None:
    archived()
    first = PACKED.read_bytes()
    Path(MODULE).touch()
    archived()

    assert PACKED.read_bytes() == first
    with tarfile.open(PACKED) as archive:
        assert {(entry.mtime, entry.uid, entry.uname, oct(entry.mode)) for entry in archive} == {(0, 0, "", "0o644")}


def test_an_archive_of_much_data_is_never_in_memory_as_a_whole() -> None:
    archived()  # what is imported takes memory too
    noise = (os.urandom(1 << 17).hex() for _ in range(20))
    write({f"stages/{number}.txt": text for number, text in enumerate(noise)})

    tracemalloc.start()
    archive_source({}, PACKED, include_data=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 20 * (1 << 18) / 2


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("https://me:secret@example.com/a/b.git", "https://example.com/a/b.git"),
        ("https://token@example.com/a/b.git?key=1#x", "https://example.com/a/b.git"),
        ("ssh://git@example.com:22/a/b", "ssh://git@example.com:22/a/b"),
        ("git@example.com:a/b.git", "ssh://git@example.com/a/b.git"),
        ("/home/me/b", None),
        ("file:///home/me/b", None),
        ("C:\\repositories\\b", None),
    ],
)
def test_of_a_url_neither_credentials_nor_a_path_of_this_machine_are_published(url: str, public: str | None) -> None:
    assert public_url(url) == public


GITHUB = "ghp_" + "A1b2C3d4E5" * 3 + "f6G7h8"
HUB = "hf_" + "AbCdEfGhIj" * 4


KEY = f"key = '{GITHUB}'"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"a = 1\n{KEY}\n", "GitHub Token, line 2"),
        (HUB, "Hugging Face token, line 1"),
        ("-----BEGIN RSA " + "PRIVATE KEY-----\nMII\n", "Private Key, line 1"),
        ("\n\naws_key = 'AKIA" + "IOSFODNN7EXAMPLE'\n", "AWS Access Key, line 3"),
        (f"password = read('password')\nmd5: {'0123456789abcdef' * 2}\ntoken = {'x' * 40!r}\n\xff", None),
        (f"{KEY}  # pragma: allowlist secret\n", None),
        (f"a = 1\x85  # pragma: allowlist secret\n{KEY}\n", "GitHub Token, line 2"),  # only a newline ends a line
        ("a\nb correct horse c: true\n", "the value of MY_SERVICE_TOKEN, line 2"),
        ("true", None),
        ("url: http://bob:password@host/\n", None),
    ],
)
def test_a_credential_is_found_by_its_form_or_as_the_value_of_a_variable_unless_its_line_allows_it(
    monkeypatch: pytest.MonkeyPatch, text: str, kind: str | None
) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", "correct horse")
    monkeypatch.setenv("OTHER_TOKEN", "true")

    assert find_secret(text.encode()) == kind


def test_a_password_in_a_url_is_found_where_urls_are_no_examples() -> None:
    text = b"a\nurl: http://bob:password@host/\n"

    assert find_secret(text, in_urls=True) == "a URL with a password, line 2"
    assert find_secret(text.replace(b"host/", b"host/  # pragma: allowlist secret"), in_urls=True) is None
