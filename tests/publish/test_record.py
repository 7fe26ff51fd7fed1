import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.formats.model_folder import weights_sha256
from stages.formats.reports import read_json, write_json
from stages.formats.revision.execution import Execution
from stages.formats.revision.provenance import (
    EXECUTION,
    INPUTS,
    RECORDED_LOCK,
    RECORDED_PARAMS,
    SOURCE_ARCHIVE,
    SPEED,
    InputListing,
    Place,
)
from stages.formats.revision.signature import verify_signature
from stages.formats.revision.verify import verify_files
from stages.publish.lock import ancestors, overlaps, read_lock
from stages.publish.record import dependency, dvc_remote, list_inputs, origin
from stages.runtime.atomic import file_sha256
from stages.runtime.entry import UserError
from tests.formats.revision.records import execution
from tests.formats.revision.test_signature import make_key, public
from tests.publish.publishing import main
from tests.publish.repository import commit_all, entry, git, md5_of_dvc, pretend_to_push, stage, write, write_lock
from tests.trained_project import write_model, write_sections

REVISION = Path("published/tiny/main")
PROVENANCE = REVISION / "provenance.json"


def observed() -> dict[str, Any]:
    main()
    result: dict[str, Any] = json.loads(PROVENANCE.read_text())
    return result


def lock(**train: Any) -> None:
    """dvc.lock as if three stages had just made what is there, and one had nothing to do with the model."""
    sections = yaml.safe_load(Path("params.yaml").read_text())
    params = {"params.yaml": {name: sections[name] for name in ("collect", "clean", "evaluate")}}
    stages = {
        "train": stage(["data/tokens/train"], ["model", "reports/train.json"]) | train,
        "other": stage(["model"], ["data/other"]),
        "tokenize": stage(["data/clean/train"], ["data/tokens"]),
        "clean": stage(["corpus", "deploy/launch/cpu.yaml"], ["data/clean", "reports/clean.json"], params),
    }
    write_lock(stages)


@pytest.fixture
def locked(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a lock, all committed but what the pipeline writes."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(project.parent))
    write({"data/other": "", ".gitignore": ".parrotflow/\ndata/\nmodel/\npublished/\ncorpus/\n"})
    lock()
    commit_all()
    return project


def test_the_record_has_the_stages_that_made_the_model_and_no_other(locked: Path) -> None:
    observed()

    kept = read_lock(REVISION / RECORDED_LOCK)
    assert list(kept) == ["clean", "tokenize", "train"]
    assert kept == {name: read_lock()[name] for name in kept}


def test_every_stage_comes_after_those_it_depends_on_whatever_their_names() -> None:
    stages = {
        "a": {"deps": [{"path": "z/1"}], "outs": [{"path": "a"}]},
        "m": {"deps": [{"path": "a/file"}, {"path": "z"}], "outs": [{"path": "m"}]},
        "z": {"deps": [], "outs": [{"path": "z"}]},
    }

    assert list(ancestors(stages, ["m"])) == ["z", "a", "m"]
    assert ancestors(stages, ["elsewhere"]) == {}


def test_paths_that_only_begin_alike_do_not_overlap() -> None:
    assert overlaps("data/train/x", "data/train")
    assert overlaps("data", "data/train")
    assert not overlaps("data/training", "data/train")


def test_a_revision_is_complete_in_itself(locked: Path) -> None:
    pretend_to_push()

    provenance = observed()

    assert verify_files(REVISION) == []
    files = {path.relative_to(REVISION).as_posix() for path in REVISION.rglob("*") if path.is_file()}
    assert files == {*provenance["files"], "provenance.json"}
    recorded = {path for path in files if path.startswith("record/")}
    assert recorded == {
        *("record/dvc.lock", "record/inputs.json", "record/params.yaml", "record/requirements.lock"),
        *(f"record/reports/{name}.json" for name in ("clean", "train", "evaluate", "evaluate_receipt")),
    }
    assert provenance["format"] == 1
    assert provenance["git"] == {
        "commit": git("rev-parse", "HEAD"),
        "origin": "https://example.com/owner/name.git",
        "on_remote": True,
        "dirty": False,
        "changed": [],
        "untracked": 0,
        "folder": "",
    }


def test_of_a_tree_that_differs_from_its_commit_the_code_is_kept(locked: Path) -> None:
    pretend_to_push()
    write({"deploy/launch/cpu.yaml": "num_machines: 1\n", "secret-customer.txt": ""})
    lock()

    provenance = observed()

    assert provenance["git"]["changed"] == ["deploy/launch/cpu.yaml"]
    assert provenance["git"]["untracked"] == 1
    with tarfile.open(REVISION / SOURCE_ARCHIVE) as archive:
        assert archive.getnames() == ["deploy/launch/cpu.yaml"]
    assert provenance["source"]["sha256"] == file_sha256(REVISION / SOURCE_ARCHIVE)
    assert "secret-customer" not in every_text()


def test_what_stages_ran_with_is_kept_also_where_it_was_edited_since(locked: Path) -> None:
    before = yaml.safe_load(Path("params.yaml").read_text())
    write_sections(locked, clean__seed=7)
    assert yaml.safe_load(Path("params.yaml").read_text()) != before

    main()

    assert yaml.safe_load((REVISION / RECORDED_PARAMS).read_text()) == before


@pytest.mark.parametrize(("out", "file"), [("reports/train.json", ""), ("model", "config.json")])
def test_what_was_edited_after_its_stage_made_it_is_not_published(locked: Path, out: str, file: str) -> None:
    with Path(out, file).open("a") as opened:
        opened.write("\n")

    with pytest.raises(UserError, match=rf"^{out}: is not what the stage train made, by dvc\.lock: run `dvc repro tr"):
        main()

    assert not Path("published").exists()


def test_how_the_training_was_executed_is_kept_only_for_the_weights_that_it_made(locked: Path) -> None:
    recorded = execution(weights_sha256())
    recorded.write()
    facts = {"device": "abacus", "processes": 3, "threads_per_process": 2, "compiled": False}
    write_json(Path("reports/train_speed.json"), facts | {"weights_sha256": weights_sha256()})

    provenance = observed()

    assert Execution.find(REVISION / EXECUTION) == recorded
    assert read_json(REVISION / SPEED)["device"] == "abacus"
    assert provenance["git"]["dirty"] is False

    write_model(locked, seed=1)  # as after a restore from the cache: the reports are of another run
    lock()
    observed()

    assert not (REVISION / EXECUTION).exists()
    assert not (REVISION / SPEED).exists()
    assert verify_files(REVISION) == []


def test_the_data_is_listed_and_inside_only_by_choice(locked: Path) -> None:
    main()
    listing = InputListing.find(REVISION / INPUTS)
    assert listing is not None
    [corpus, launch] = listing.dependencies
    assert (corpus.path, launch.path) == ("corpus", "deploy/launch/cpu.yaml")
    assert corpus.files == {path.as_posix(): file_sha256(path) for path in sorted(Path("corpus").rglob("*.py"))}
    assert [place.kind for place in (*corpus.places, *launch.places)] == ["local", "source archive"]
    assert not (REVISION / "record/included").exists()

    shutil.rmtree("published")
    write_sections(locked, publish__include_data=True)
    main()

    assert {path: file_sha256(REVISION / "record/included" / path) for path in corpus.files} == corpus.files
    assert verify_files(REVISION) == []


def test_a_revision_that_is_published_again_keeps_its_first_record_and_nothing_is_written(locked: Path) -> None:
    main()
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in Path().rglob("*")}
    git("commit", "-q", "--allow-empty", "-m", "second")

    main()

    after = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in Path().rglob("*")}
    differing = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert {path for path in differing if not {".git", "data"} & {*path.parts}} == set()  # the card is written anew


def test_a_record_that_was_edited_after_it_was_published_is_noticed(locked: Path) -> None:
    main()
    edited = REVISION / RECORDED_PARAMS
    edited.chmod(0o644)
    edited.write_text(edited.read_text() + "# edited\n")

    with pytest.raises(UserError, match=r"record/params.yaml: differs from what was published: .*; delete that folder"):
        main()


def test_a_credential_in_the_parameters_is_not_published(locked: Path) -> None:
    write_sections(locked, card__tags=["hf_" + "AbCdEfGhIj" * 4])

    with pytest.raises(UserError, match=r"params.yaml: holds what looks like a credential \(Hugging Face token, line"):
        main()

    assert not Path("published").exists()


@pytest.mark.parametrize("name", ["dvc.lock", "dvc.yaml", "params.yaml", "reports/train.json"])
def test_a_password_or_a_signature_in_a_url_is_not_published(locked: Path, name: str) -> None:
    url = "http://bob:s3cr3t@host/a?sig=s3cr3t"
    write({"dvc.yaml": "stages: {}\n"})
    if name == "dvc.lock":
        lock(cmd=f"python -m stages.train {url}")
    elif name == "reports/train.json":
        write_json(Path(name), json.loads(Path(name).read_text()) | {"where": url})
        lock()
    else:
        write({name: Path(name).read_text() + f"# see {url}\n"})

    with pytest.raises(UserError, match=rf"{name}: .*\(a URL with a password, line \d+\)") as refused:
        main()

    assert "s3cr3t" not in str(refused.value)
    assert not Path("published").exists()


def test_neither_a_token_nor_a_path_of_this_machine_is_published(locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "not-of-any-known-form")
    write({"deploy/launch/cpu.yaml": "# not-of-any-known-form\n"})
    lock()

    provenance = observed()

    assert [left["path"] for left in provenance["left_out"]] == ["deploy/launch/cpu.yaml"]
    for private in ("not-of-any-known-form", str(locked), str(Path.home()) + "/"):
        assert private not in every_text()


def every_text() -> str:
    files = (path for path in Path("published").rglob("*") if path.is_file() and path.suffix != ".safetensors")
    archived = []
    if (REVISION / SOURCE_ARCHIVE).exists():
        with tarfile.open(REVISION / SOURCE_ARCHIVE) as archive:
            archived = [archive.extractfile(entry).read() for entry in archive if entry.isfile()]  # type: ignore[union-attr]
    return b"\n".join([*(path.read_bytes() for path in files), *archived]).decode("utf-8", "replace")


def test_outside_a_repository_there_is_no_commit(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(project.parent))

    provenance = observed()

    assert provenance["git"] is None
    assert provenance["source"]["whole"]
    assert verify_files(REVISION) == []


def test_data_with_a_credential_is_not_put_inside(locked: Path) -> None:
    write_sections(locked, publish__include_data=True)
    write({"corpus/deploy.key": "anything"})
    lock()

    with pytest.raises(UserError, match=r"corpus/deploy.key: a file of this name may hold credentials"):
        main()


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
        {"kind": "jsonl", "name": "packed", "globs": ["zip://*::https://host/a.zip", "zip://*::/mnt/disk/a.zip"]},
        {"kind": "new", "name": "feed", "address": "nowhere"},
    ]

    assert origin("httpx", "0.28", asked) == ("packages", [Place(kind="package", address="httpx==0.28")])
    assert origin("standard_library", "3.11.7", asked)[1] == [Place(kind="package", address="python==3.11.7")]
    assert origin("code", "a" * 40, asked)[1] == [Place(kind="hub", address=f"owner/code@{'a' * 40}")]
    assert origin("rows", "1", asked)[1] == [
        Place(kind="url", address="s3://bucket/*.jsonl"),
        Place(kind="local", address="corpus"),
    ]
    assert origin("packed", "1", asked)[1] == [
        Place(kind="url", address="zip://*::https://host/a.zip"),
        Place(kind="local"),
    ]
    assert origin("feed", "", asked) == ("new", [])
    assert origin("a row's own", "", asked) == ("", [])


def test_a_source_of_several_entries_has_the_places_of_all_and_another_revision_of_it_its_own(folder: Path) -> None:
    entries = [("files", "1", "a"), ("jsonl", "1", "b"), ("files", "2", "c"), ("files", "1", "a")]
    asked: list[dict[str, Any]] = [
        {"kind": kind, "name": "mine", "revision": revision, "globs": [glob]} for kind, revision, glob in entries
    ]

    of_first = [Place(kind="local", address="a"), Place(kind="local", address="b")]
    assert origin("mine", "1", asked) == ("files, jsonl", of_first)
    assert origin("mine", "2", asked) == ("files", [Place(kind="local", address="c")])


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


def test_a_key_that_is_named_after_the_first_publication_signs_it(
    locked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main()
    assert verify_signature(REVISION).state == "unsigned"
    key = make_key(tmp_path, "mine")
    monkeypatch.setenv("PARROTFLOW_SIGNING_KEY", str(key))

    main()

    assert verify_signature(REVISION, public(key)).state == "valid"
    assert verify_files(REVISION) == []
