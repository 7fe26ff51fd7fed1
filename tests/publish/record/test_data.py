from pathlib import Path

import pytest

from stages.formats.revision.provenance import Place
from stages.publish.record.data import dependency, dvc_remote, list_inputs, md5_of_dvc, origin
from stages.runtime.atomic import file_sha256
from tests.publish.record.repository import entry, write


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_has_the_name_that_dvc_gives_it(folder: Path) -> None:
    assert md5_of_dvc(Path("nothing")) == "d751713988987e9331980363e24189ce.dir"
    write({"corpus/b": "text", "corpus/a/c": "more", "corpus/a.c": ""})
    assert md5_of_dvc(Path("corpus")) == "2218f8ac0ad1041d91353718323e007f.dir"  # what `dvc add corpus` writes


def test_the_files_of_a_dependency_are_listed_with_their_hashes_and_places(folder: Path) -> None:
    write({"problems/a.jsonl": "1", "problems/b.jsonl": "2"})
    known = {"problems/a.jsonl": Place(kind="commit")}

    found = dependency(entry("problems"), known, inside=False)

    assert found.files == {path: file_sha256(Path(path)) for path in ("problems/a.jsonl", "problems/b.jsonl")}
    assert [place.kind for place in found.places] == ["commit", "local"]
    assert [place.kind for place in dependency(entry("problems"), known, inside=True).places] == ["commit", "record"]


def test_data_that_was_edited_since_is_not_listed_as_what_was_used(folder: Path) -> None:
    write({"problems/a.jsonl": "1"})
    used = entry("problems")
    write({"problems/a.jsonl": "2"})

    found = dependency(used, {}, inside=True)

    assert (found.edited, found.files, [place.kind for place in found.places]) == (True, {}, ["local"])


def test_where_the_bytes_of_a_source_are_follows_from_its_parameters(folder: Path) -> None:
    asked = [
        {"kind": "packages", "names": ["rich", "httpx"]},
        {"kind": "standard_library"},
        {"kind": "hub", "name": "code", "repository": "owner/code", "revision": "a" * 40},
        {"kind": "jsonl", "name": "rows", "globs": ["s3://key:secret@bucket/*.jsonl", "corpus"]},
        {"kind": "new", "name": "feed", "address": "nowhere"},
    ]

    assert origin("httpx", "0.28", asked) == ("packages", [Place(kind="package", address="httpx==0.28")])
    assert origin("standard_library", "3.11.7", asked)[1] == [Place(kind="package", address="python==3.11.7")]
    assert origin("code", "a" * 40, asked)[1] == [Place(kind="hub", address=f"owner/code@{'a' * 40}")]
    assert origin("rows", "1", asked)[1] == [
        Place(kind="url", address="s3://bucket/*.jsonl"),
        Place(kind="local", address="corpus"),
    ]
    assert origin("feed", "", asked) == ("new", [])
    assert origin("a row's own", "", asked) == ("", [])


@pytest.mark.parametrize(
    ("config", "url"),
    [
        (
            "[core]\n    remote = store\n['remote \"store\"']\n    url = s3://bucket/path\n    endpointurl = x\n",
            "s3://bucket/path",
        ),
        (
            "[core]\n    remote = store\n['remote \"store\"']\n    url = https://me:pass@example.com/x\n",
            "https://example.com/x",
        ),
        ("[core]\n    remote = store\n['remote \"store\"']\n    url = /mnt/disk\n", None),
        ("[core]\n    analytics = false\n", None),
        ("no configuration", None),
    ],
)
def test_the_remote_of_dvc_is_named_without_credentials_and_not_as_a_path(
    folder: Path, config: str, url: str | None
) -> None:
    write({".dvc/config": config})

    assert dvc_remote() == url


def test_of_a_source_the_documents_and_licences_that_were_used_are_counted(project: Path) -> None:
    stages = {"collect": {"params": {"params.yaml": {"collect": {"sources": [
        {"kind": "files", "name": "mine", "globs": ["corpus"]}
    ]}}}}}  # fmt: skip

    [source] = list_inputs(stages, {}, inside=False).sources

    assert (source.name, source.revision, source.kind) == ("mine", "1", "files")
    assert source.documents == sum(amount.documents for amount in source.licenses.values()) == 12
    assert source.bytes == source.licenses["MIT"].bytes
    assert source.places == [Place(kind="local", address="corpus")]
