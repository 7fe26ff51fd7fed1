import errno
import json
import os
import re
import shutil
import stat
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from stages.formats.evaluation.harness import HarnessReport, ScoredWith
from stages.formats.model_folder import weights_sha256
from stages.formats.revision.execution import Execution
from stages.formats.revision.provenance import is_observed, step_name
from stages.formats.revision.verify import verify_files
from stages.publish.__main__ import main
from stages.publish.folder import Move, before_main, read_moves, record_move
from stages.publish.registry import Folder
from stages.runtime.atomic import file_sha256
from stages.runtime.entry import UserError
from tests.small_project import folder_bytes
from tests.trained_project import write_model, write_sections

KEPT = Path("published/tiny/revisions")
MAIN = Path("published/tiny/main")
PUBLISHED = Path("published/tiny")
RECEIPT = Path("published/tiny/receipt.json")


def publish_until_killed(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """Publish in a child process, which is killed where it would call `at`."""
    with monkeypatch.context() as killing:
        killing.setattr(at, lambda *_: os.kill(os.getpid(), 9))
        child = os.fork()
        if child == 0:
            main()
        os.waitpid(child, 0)


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
        "evaluation.json",
        "evaluation_receipt.json",
        "generation_config.json",
        "model.safetensors",
        "provenance.json",
        "record",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert AutoModelForCausalLM.from_pretrained(MAIN).num_parameters() > 0
    assert AutoTokenizer.from_pretrained(MAIN).eos_token == "<|endoftext|>"


@pytest.mark.parametrize("prompt", ["Es war einmal", ""])
def test_the_receipt_names_the_prompt_of_the_card_for_those_who_try_the_model(project: Path, prompt: str) -> None:
    write_sections(project, publish__prompt=prompt)

    main()

    named = receipt()["prompt"]
    assert named
    assert not prompt or named == prompt
    assert f"tokenizer({json.dumps(named)}, return_tensors" in (MAIN / "README.md").read_text()


def test_nothing_is_published_twice(project: Path) -> None:
    main()
    before = {path: path.stat().st_mtime_ns for path in KEPT.rglob("*")}
    first = RECEIPT.read_bytes()
    RECEIPT.unlink()

    main()

    assert {path: path.stat().st_mtime_ns for path in KEPT.rglob("*")} == before
    assert RECEIPT.read_bytes() == first


@pytest.mark.parametrize("report", ["evaluate_receipt", "generate_receipt", "score_receipt", "harness_receipt"])
def test_a_report_of_other_weights_is_not_published(project: Path, report: str) -> None:
    receipt = ScoredWith(
        weights_sha256=weights_sha256(),
        context_length=32,
        seed=0,
        bootstrap_resamples=1000,
        versions={"lm_eval": "0.4.13"},
    )
    HarnessReport.read().model_copy(update={"scored_with": receipt}).write()
    path = project / f"reports/{report}.json"
    path.write_text(path.read_text().replace(weights_sha256(), "e" * 64))

    with pytest.raises(
        UserError, match=rf"^reports/{report}\.json: measured on other weights than those in model/; run"
    ):
        main()

    assert not PUBLISHED.exists()


def test_an_earlier_revision_is_kept_and_main_leads_to_the_one_asked_for(project: Path) -> None:
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


def test_a_revision_that_was_changed_is_not_published_again_as_if_intact(project: Path) -> None:
    main()
    weights = KEPT / receipt()["revision"] / "model.safetensors"
    weights.unlink()
    weights.write_bytes(b"other")

    with pytest.raises(UserError, match=f"{re.escape(str(weights))}: differs from what was published as this revision"):
        main()


def test_a_kill_during_the_copy_leaves_nothing_that_looks_published(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main()
    before = folder_bytes(Path("published"))
    write_model(project, seed=1)

    publish_until_killed(monkeypatch, at="stages.publish.folder.require_intact")

    after = {path: content for path, content in folder_bytes(Path("published")).items() if ".partial/" not in path}
    # Without a receipt DVC publishes again, whatever is asked for next.
    assert after == {path: content for path, content in before.items() if not path.endswith("/receipt.json")}
    main()
    assert not list(KEPT.glob(".*"))


def two_revisions() -> tuple[Path, Path]:
    """Of one model, with two descriptions."""
    main()
    first = MAIN.resolve()
    write_sections(Path(), publish__description="Another description.")
    main()
    return first, MAIN.resolve()


def test_equal_files_of_several_revisions_are_stored_once_and_none_can_be_written(project: Path) -> None:
    first, second = two_revisions()

    assert first != second
    for name in ("model.safetensors", "tokenizer.json", "evaluation.json"):
        assert (first / name).samefile(second / name)
    assert not (first / "README.md").samefile(second / "README.md")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in KEPT.rglob("*") if path.is_file()}
    assert modes == {0o444}
    subprocess.run(["rm", "-r", "published"], check=True, stdin=subprocess.DEVNULL)


def test_where_the_file_system_has_no_links_equal_files_are_copied(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", no_link)

    first, second = two_revisions()

    assert not (first / "model.safetensors").samefile(second / "model.safetensors")
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()


def test_a_damaged_file_is_not_linked_into_the_next_revision(project: Path) -> None:
    main()
    weights = MAIN / "model.safetensors"
    whole = weights.read_bytes()
    weights.chmod(0o644)
    weights.write_bytes(b"damaged")
    write_sections(project, publish__description="Another description.")

    main()

    assert (MAIN / "model.safetensors").read_bytes() == whole


def test_what_an_older_version_stored_stays_readable_and_is_linked(project: Path) -> None:
    main()
    old = MAIN.resolve()
    (PUBLISHED / "history.jsonl").unlink()
    for path in old.rglob("*"):
        path.chmod(0o644)
    write_sections(project, publish__description="Another description.")

    main()

    assert (MAIN / "model.safetensors").samefile(old / "model.safetensors")
    assert [(move.before, move.to, move.why) for move in read_moves(PUBLISHED, MAIN.resolve().name)] == [
        (old.name, MAIN.resolve().name, "published")
    ]


def test_what_a_version_without_checksums_stored_is_replaced_as_the_error_says(project: Path) -> None:
    main()
    kept = MAIN.resolve()
    index = json.loads((kept / "provenance.json").read_text())
    index.pop("checksum")
    (kept / "provenance.json").chmod(0o644)
    (kept / "provenance.json").write_text(json.dumps(index))

    with pytest.raises(
        UserError, match=rf"without a checksum; delete published/tiny/revisions/{kept.name} and run `dvc"
    ):
        main()

    shutil.rmtree(kept)
    main()

    assert MAIN.resolve() == kept
    assert verify_files(kept) == []


@pytest.mark.parametrize("edit", [None, {"versions": {"torch": "9.9.9"}}, {"revision": "0" * 16}])
def test_an_index_that_was_changed_or_removed_is_not_published_again_as_if_intact(
    project: Path, edit: dict[str, object] | None
) -> None:
    main()
    index = MAIN.resolve() / "provenance.json"
    values = json.loads(index.read_text())
    index.unlink()
    if edit:
        index.write_text(json.dumps(values | edit))

    with pytest.raises(UserError, match=rf"{index.name}: is not as it was published, or .*; delete published/tiny/rev"):
        main()


def test_each_move_of_main_is_recorded_once(project: Path) -> None:
    first, second = two_revisions()
    main()

    moves = read_moves(PUBLISHED, second.name)
    assert [(move.before, move.to, move.why) for move in moves] == [
        (None, first.name, "published"),
        (first.name, second.name, "published"),
    ]


def test_a_move_that_a_crash_prevented_is_not_in_the_history(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main()
    first = MAIN.resolve().name
    write_sections(project, publish__description="Another description.")

    publish_until_killed(monkeypatch, at="stages.publish.folder.link")

    assert len((PUBLISHED / "history.jsonl").read_text().splitlines()) == 2
    assert [move.to for move in read_moves(PUBLISHED, MAIN.resolve().name)] == [first]
    main()
    assert [move.to for move in read_moves(PUBLISHED, MAIN.resolve().name)] == [first, MAIN.resolve().name]


def export_step(number: int, seed: int) -> None:
    """Let the training have exported a model after that many steps, and have recorded its run."""
    Path("model").rename("whole")
    write_model(Path(), seed)
    for tokenizer in Path("model").glob("tokenizer*"):
        tokenizer.unlink()
    Path("model").rename(Path("whole", step_name(number)))
    Path("whole").rename("model")
    Execution(weights_sha256=weights_sha256(), fingerprint="f" * 64, sessions=[], checkpoints={}).write()


def test_exported_steps_are_published_with_their_run_and_load_by_path(project: Path) -> None:
    export_step(2, seed=1)
    export_step(3, seed=0)  # the last one is the model itself

    first, second = two_revisions()

    run = PUBLISHED / "runs" / ("f" * 16)
    assert receipt()["steps"] == {
        "2": "runs/ffffffffffffffff/step-00000002",
        "3": "runs/ffffffffffffffff/step-00000003",
    }
    for folder in sorted(run.iterdir()):
        assert AutoTokenizer.from_pretrained(folder).eos_token == "<|endoftext|>"
        assert AutoModelForCausalLM.from_pretrained(folder).num_parameters() > 0
        assert (folder / "tokenizer.json").samefile(run / "step-00000002/tokenizer.json")
    assert (run / "step-00000003/model.safetensors").samefile(second / "model.safetensors")
    assert not (run / "step-00000002/model.safetensors").samefile(second / "model.safetensors")
    assert f'from_pretrained("PATH/runs/{"f" * 16}/step-00000002")' in (MAIN / "README.md").read_text()

    registry = Folder(PUBLISHED)
    assert list(registry.steps(second.name)) == [2, 3]
    assert registry.freed_by_removing(first.name) < (first / "model.safetensors").stat().st_size
    registry.remove(first.name)
    assert run.is_dir()
    registry.remove(second.name)
    assert not run.exists()


def test_steps_of_an_unknown_run_are_not_published(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export_step(2, seed=1)
    Path("reports/train_execution.json").unlink()

    main()

    assert "exported steps are not published" in capsys.readouterr().out
    assert not (PUBLISHED / "runs").exists()
    assert "step-00000002" not in (MAIN / "README.md").read_text()


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
    files = [path for path in MAIN.iterdir() if path.is_file()]
    assert listed == {path.name: file_sha256(path) for path in files if not is_observed(path.name)}


def test_a_full_disk_names_the_file_that_could_not_be_written(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(target))

    monkeypatch.setattr("shutil.copyfile", full)

    with pytest.raises(OSError, match="No space left on device") as raised:
        main()

    assert "published/tiny/revisions/" in raised.value.filename


def moves(*steps: tuple[str | None, str, str]) -> list[Move]:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    return [Move.model_validate({"at": at, "from": before, "to": to, "why": why}) for before, to, why in steps]


UP_TO_C = ((None, "A", "published"), ("A", "B", "published"), ("B", "C", "promoted"))


def test_each_rollback_goes_a_step_further_back() -> None:
    kept = {"A", "B", "C"}

    assert before_main(moves(*UP_TO_C), kept) == "B"
    assert before_main(moves(*UP_TO_C, ("C", "B", "rolled back")), kept) == "A"
    assert before_main(moves(*UP_TO_C, ("C", "B", "rolled back"), ("B", "A", "rolled back")), kept) is None


def test_a_publication_after_a_rollback_leads_back_to_what_was_rolled_back_to() -> None:
    again = moves(*UP_TO_C, ("C", "B", "rolled back"), ("B", "D", "published"))

    assert before_main(again, {"A", "B", "C", "D"}) == "B"


def test_what_was_removed_is_passed_over() -> None:
    assert before_main(moves(*UP_TO_C), {"A", "C"}) == "A"
    assert before_main(moves(*UP_TO_C), {"C"}) is None


def test_what_was_published_before_moves_were_recorded_counts() -> None:
    assert before_main(moves(("A", "B", "published")), {"A", "B"}) == "A"
    assert before_main([], {"A"}) is None


@given(st.lists(st.sampled_from("ABCD"), min_size=1, max_size=12))
def test_a_rollback_never_leads_to_where_main_is(names: list[str]) -> None:
    steps = [(before, to, "published") for before, to in zip([None, *names], names, strict=False) if before != to]

    assert before_main(moves(*steps), set(names)) != names[-1]


def test_moves_are_read_as_they_were_recorded(tmp_path: Path) -> None:
    record_move(tmp_path, None, "A", "published")
    record_move(tmp_path, "A", "B", "promoted")

    found = read_moves(tmp_path, "B")

    assert [(move.before, move.to, move.why) for move in found] == [(None, "A", "published"), ("A", "B", "promoted")]


def test_a_rollback_to_a_revision_that_was_main_twice_goes_back_to_its_last_time() -> None:
    steps = moves((None, "A", "published"), ("A", "B", "published"), ("B", "A", "published"), ("A", "C", "published"))

    assert before_main([*steps, *moves(("C", "A", "rolled back"))], {"A", "B", "C"}) == "B"


def test_no_move_is_lost_where_main_was_led_elsewhere_by_hand(tmp_path: Path) -> None:
    record_move(tmp_path, None, "A", "published")
    record_move(tmp_path, "A", "B", "promoted")

    record_move(tmp_path, "by hand", "C", "published")

    assert [move.to for move in read_moves(tmp_path, "C")] == ["A", "C"]
