import json
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from stages.formats.model_folder import weights_sha256
from stages.formats.reports import read_json, write_json
from stages.formats.revision.execution import Execution
from stages.formats.revision.provenance import EXECUTION, PROVENANCE, SOURCE_ARCHIVE, SPEED
from stages.formats.revision.statement import Provenance
from stages.formats.revision.verify import verify_files, verify_signature
from stages.formats.sources import read_sources
from stages.publish.revision import reports_of
from stages.runtime.errors import UserError
from stages.runtime.preflight import recorded_stages
from tests.formats.revision.records import execution
from tests.formats.revision.test_signature import make_key, public
from tests.publish.publishing import main, train_anew
from tests.publish.repository import contents, git

REVISION = Path("published/tiny/main")


def test_a_revision_is_complete_in_itself(project: Path) -> None:
    main()
    provenance = json.loads((REVISION / "provenance.json").read_text())

    assert verify_files(REVISION) == []
    files = {path.relative_to(REVISION).as_posix() for path in REVISION.rglob("*") if path.is_file()}
    assert files == {*(one["name"] for one in provenance["subject"]), "provenance.json"}
    recorded = {path for path in files if path.startswith("record/")}
    assert recorded == {
        *(f"record/{name}" for name in ("dvc.lock", "dvc.yaml", "params.yaml", "requirements.lock")),
        *(f"record/reports/{name}.json" for name in ("clean", "train", "evaluate", "yardstick")),
        "record/source.tar.gz",
    }
    built = provenance["predicate"]["buildDefinition"]
    assert built["externalParameters"] == yaml.safe_load((REVISION / "record/params.yaml").read_text())
    code, *read, source = built["resolvedDependencies"]
    assert code == {"digest": {"gitCommit": git("rev-parse", "HEAD")}, "annotations": {"dirty": False}}
    assert [one["name"] for one in (*read, source)] == [
        *("record/dvc.lock", "record/requirements.lock", "record/source.tar.gz"),
        "mine",
    ]
    kept = recorded_stages(REVISION / "record/dvc.lock")
    assert list(kept) == ["clean", "tokenize", "train", "evaluate", "yardstick", "card"]
    assert kept == {name: recorded_stages(Path("dvc.lock"))[name] for name in kept}
    with tarfile.open(REVISION / SOURCE_ARCHIVE) as archive:
        assert {"deploy/launch/cpu.yaml", "evaluation/problems/python.jsonl"} <= {*archive.getnames()}


def test_how_the_training_was_executed_is_kept_only_for_the_weights_that_it_made(project: Path) -> None:
    recorded = execution(weights_sha256())
    recorded.write()
    facts = {"device": "abacus", "processes": 3, "threads_per_process": 2, "compiled": False}
    write_json(Path("reports/train_speed.json"), facts | {"weights_sha256": weights_sha256()})

    main()

    assert Execution.find(REVISION / EXECUTION) == recorded
    byproducts = read_json(REVISION / PROVENANCE)["predicate"]["runDetails"]["byproducts"]
    assert [one["name"] for one in byproducts] == [EXECUTION, SPEED]
    assert read_json(REVISION / SPEED)["device"] == "abacus"

    train_anew(1)  # as after a restore from the cache: the reports are of another run
    main()

    assert not (REVISION / EXECUTION).exists()
    assert not (REVISION / SPEED).exists()
    assert verify_files(REVISION) == []


def test_weights_that_the_training_did_not_record_are_not_published(project: Path) -> None:
    weights = Path("model/model.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)

    with pytest.raises(
        UserError, match=r"^model: its weights differ from those that training wrote \(reports/train\.json\)"
    ):
        main()

    assert not Path("published").exists()


def test_long_curves_are_kept(project: Path) -> None:
    curve = Path("reports/curves/training_loss.tsv")
    curve.parent.mkdir()
    curve.write_text("1\t1.0\n")

    kept = reports_of({"train": {"outs": [{"path": "reports/curves", "size": 10_000_000}]}})

    assert kept == {f"record/{curve}": curve.read_bytes()}


def test_the_sources_are_listed_with_what_was_used_of_them(project: Path) -> None:
    main()

    [source] = Provenance.read(REVISION / PROVENANCE).sources
    assert (source.name, source.revision) == ("mine", "1")
    assert source.documents == sum(amount.documents for amount in source.licenses.values()) == 12
    assert source.bytes == source.licenses["MIT"].bytes


@pytest.mark.parametrize("name", ["dvc.yaml", "params.yaml", "reports/evaluate.json"])
def test_a_password_or_a_signature_in_a_url_is_not_published(project: Path, name: str) -> None:
    url = "http://bob:s3cr3t@host/a?sig=s3cr3t"
    if name == "reports/evaluate.json":
        values = json.loads(Path(name).read_text())
        values["receipt"]["convention"] += f" {url}"
        write_json(Path(name), values)
    else:
        Path(name).write_text(Path(name).read_text() + f"# see {url}\n")

    with pytest.raises(UserError, match=rf"{name}: .*\(a URL with a password, line \d+\)") as refused:
        main()

    assert "s3cr3t" not in str(refused.value)
    assert not Path("published").exists()


def test_neither_a_token_nor_a_path_of_this_machine_is_published(project: Path) -> None:
    main()

    files = (path for path in Path("published").rglob("*") if path.is_file() and path.suffix != ".safetensors")
    with tarfile.open(REVISION / SOURCE_ARCHIVE) as archive:
        archived = contents(archive).values()
    text = b"\n".join([*(path.read_bytes() for path in files), *archived])
    for private in (str(project), f"{Path.home()}/"):
        assert private.encode() not in text


def test_a_key_that_is_named_after_the_first_publication_signs_it(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main()
    assert verify_signature(REVISION).state == "unsigned"
    key = make_key(tmp_path, "mine")
    monkeypatch.setenv("PARROTFLOW_SIGNING_KEY", str(key))

    main()

    assert verify_signature(REVISION, public(key)).state == "valid"
    assert verify_files(REVISION) == []


def test_a_source_is_summed_up_whatever_the_order_of_its_documents(project: Path) -> None:
    before = read_sources(Path("data/tokens/train"))
    file = next(Path("data/tokens/train").glob("*.documents.jsonl"))
    file.write_text("".join(reversed(file.read_text().splitlines(keepends=True))))

    assert read_sources(Path("data/tokens/train")) == before


@pytest.mark.needs_ssh_keygen
def test_the_two_commands_of_the_card_verify_every_file_and_the_signature_without_this_project(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = make_key(tmp_path, "mine")
    monkeypatch.setenv("PARROTFLOW_SIGNING_KEY", str(key))
    main()
    (tmp_path / "allowed_signers").write_text(f"publisher {public(key).read_text()}")
    text = (REVISION / "README.md").read_text()
    block = next(one for one in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "sha256sum" in one)
    files, signature = block.splitlines()
    weights, index = REVISION / "model.safetensors", REVISION / "provenance.json"

    def exit_code(command: str) -> int:
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        shell = ["bash", "-o", "pipefail", "-c", command]
        return subprocess.run(shell, cwd=REVISION, env=environment, capture_output=True, check=False).returncode

    assert (exit_code(files), exit_code(signature)) == (0, 0)
    for path, found in ((weights, (1, 0)), (index, (0, 255))):
        content = path.read_bytes()
        path.chmod(0o644)
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:] if path == weights else content + b"\n")
        assert (exit_code(files), exit_code(signature)) == found
        path.write_bytes(content)
