import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM, AutoTokenizer

from stages.publish.__main__ import main
from stages.runtime.entry import UserError
from stages.runtime.hashes import file_sha256
from tests.small_project import folder_bytes
from tests.trained_project import write_model, write_sections

KEPT = Path("published/tiny/revisions")
MAIN = Path("published/tiny/main")
RECEIPT = Path("data/receipt.json")


def receipt() -> dict[str, str]:
    result: dict[str, str] = json.loads(RECEIPT.read_text())
    return result


def test_a_revision_is_laid_out_as_the_hub_would_have_it_and_loads_by_path(project: Path) -> None:
    main()

    revision = receipt()["revision"]
    assert MAIN.readlink() == Path("revisions") / revision
    assert sorted(path.name for path in MAIN.iterdir()) == [
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "provenance.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert AutoModelForCausalLM.from_pretrained(MAIN).num_parameters() > 0
    assert AutoTokenizer.from_pretrained(MAIN).eos_token == "<|endoftext|>"


def test_nothing_is_published_twice(project: Path) -> None:
    main()
    before = {path: path.stat().st_mtime_ns for path in KEPT.rglob("*")}
    first = RECEIPT.read_bytes()
    RECEIPT.unlink()

    main()

    assert {path: path.stat().st_mtime_ns for path in KEPT.rglob("*")} == before
    assert RECEIPT.read_bytes() == first


def test_an_earlier_revision_stays_and_main_leads_to_what_was_published_last(project: Path) -> None:
    main()
    first, content = receipt()["revision"], folder_bytes(MAIN)
    write_model(project, seed=1)
    main()
    second = receipt()["revision"]

    assert first != second
    assert MAIN.readlink().name == second
    assert folder_bytes(KEPT / first) == content

    write_model(project, seed=0)
    main()

    assert MAIN.readlink().name == first
    assert len(list(KEPT.iterdir())) == 2


def test_a_commit_or_another_machine_changes_no_revision(project: Path) -> None:
    main()
    first = RECEIPT.read_bytes()
    subprocess.run(["git", "init", "-q"], check=True)

    main()

    assert RECEIPT.read_bytes() == first


def test_a_revision_that_was_changed_is_never_passed_off_as_the_published_one(project: Path) -> None:
    main()
    weights = KEPT / receipt()["revision"] / "model.safetensors"
    weights.write_bytes(b"other")

    with pytest.raises(UserError, match=f"{re.escape(str(weights))}: is not what was published under this revision"):
        main()


def test_a_kill_on_the_way_leaves_nothing_that_looks_published(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main()
    before = folder_bytes(Path("published"))
    write_model(project, seed=1)
    monkeypatch.setattr("stages.publish.folder.require_intact", lambda *_: os.kill(os.getpid(), 9))

    child = os.fork()
    if child == 0:
        main()
    os.waitpid(child, 0)

    after = {path: content for path, content in folder_bytes(Path("published")).items() if ".partial/" not in path}
    assert after == before
    monkeypatch.undo()
    os.chdir(project)
    main()
    assert not list(KEPT.glob(".*"))


def test_the_card_is_one_the_hub_reads_with_the_metrics_in_it(project: Path) -> None:
    main()

    evaluation = json.loads(Path("reports/evaluate.json").read_text())
    card = ModelCard.load(MAIN / "README.md")
    assert card.data.license == "apache-2.0"
    values = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert values == {name: evaluation[name] for name in ("loss", "perplexity", "bits_per_byte")}


def test_the_card_tells_of_data_metrics_samples_and_limits(project: Path) -> None:
    main()

    text = (MAIN / "README.md").read_text()
    samples = json.loads(Path("data/samples.json").read_text())
    assert "A model for tests." in text
    assert '.from_pretrained("published/tiny/main")' in text
    counts = json.loads(Path("reports/tokenize.json").read_text())
    assert f"| MIT | {counts['train']['documents']} | {counts['train']['bytes']:,} |" in text
    assert f"| MIT | {counts['validation']['documents']} | {counts['validation']['bytes']:,} |" in text
    assert "| training loss | 5.5 |" in text
    assert "| gzip -9 (bits per byte) |" in text
    assert all(sample["signature"] in text for sample in samples)
    assert "filters dropped 1 (generated)" in text


def test_what_is_missing_is_named(project: Path) -> None:
    Path("reports/evaluate.json").unlink()

    with pytest.raises(UserError, match=r"reports/evaluate.json: not found; run `dvc repro`, which makes it first"):
        main()


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", "", "a..b"])
def test_a_name_cannot_lead_elsewhere(project: Path, name: str) -> None:
    write_sections(project, publish__name=name)

    with pytest.raises(UserError, match=r"params.yaml: publish"):
        main()


def test_no_pickle_is_shipped(project: Path) -> None:
    (project / "model/pytorch_model.bin").write_bytes(b"pickle")
    (project / "model/optimizer.pt").write_bytes(b"pickle")

    main()

    assert not [path for path in MAIN.iterdir() if path.suffix in (".bin", ".pt")]


def test_the_receipt_names_every_file_by_its_hash(project: Path) -> None:
    main()

    listed = json.loads(RECEIPT.read_text())["sha256"]
    assert listed == {path.name: file_sha256(path) for path in MAIN.iterdir() if path.name != "provenance.json"}


def test_the_card_shows_what_was_accepted_without_a_run(project: Path) -> None:
    entry = {
        "stage": "clean",
        "because": "a comment",
        "changes": ["stages/clean/verdicts.py modified in remarks only"],
        "same_syntax_tree": True,
        "by": "Ada",
        "date": "2026-01-02",
    }
    Path("accepted.yaml").write_text(yaml.safe_dump([entry]))

    main()

    row = (
        "| clean | stages/clean/verdicts.py modified in remarks only | same syntax tree | a comment | Ada, 2026-01-02 |"
    )
    assert row in Path("published/tiny/main/README.md").read_text()
