import json
import tarfile
from pathlib import Path

import pytest

from stages.formats.model_folder import weights_sha256
from stages.formats.reports import read_json, write_json
from stages.formats.revision.execution import Execution
from stages.formats.revision.provenance import EXECUTION, INPUTS, SOURCE_ARCHIVE, SPEED, InputListing
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
    assert files == {*provenance["files"], "provenance.json"}
    recorded = {path for path in files if path.startswith("record/")}
    assert recorded == {
        *(f"record/{name}" for name in ("dvc.lock", "dvc.yaml", "inputs.json", "params.yaml", "requirements.lock")),
        *(f"record/reports/{name}.json" for name in ("clean", "train", "evaluate")),
        "record/source.tar.gz",
    }
    assert provenance["format"] == 1
    assert provenance["git"] == {"commit": git("rev-parse", "HEAD"), "dirty": False, "origin": None}
    kept = recorded_stages(REVISION / "record/dvc.lock")
    assert list(kept) == ["clean", "tokenize", "train", "evaluate", "card"]
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
        UserError, match=r"^model: its weights are not those that training made \(reports/train\.json\)"
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

    listing = InputListing.read(REVISION / INPUTS)
    [source] = listing.sources
    assert (source.name, source.revision) == ("mine", "1")
    assert source.documents == sum(amount.documents for amount in source.licenses.values()) == 12
    assert source.bytes == source.licenses["MIT"].bytes


@pytest.mark.parametrize("name", ["dvc.yaml", "params.yaml", "reports/train.json"])
def test_a_password_or_a_signature_in_a_url_is_not_published(project: Path, name: str) -> None:
    url = "http://bob:s3cr3t@host/a?sig=s3cr3t"
    if name == "reports/train.json":
        write_json(Path(name), json.loads(Path(name).read_text()) | {"where": url})
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
