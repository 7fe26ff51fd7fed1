import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from stages.formats.model_folder import weights_sha256
from stages.formats.reports import CURVES, read_json, write_json
from stages.publish.__main__ import main as publish
from stages.publish.commands.published import main, revision_before, write_page
from stages.publish.registry import Folder
from stages.runtime.entry import EXIT_REFUSED, RefusedError, UserError
from tests.publish.repository import stage, write_lock
from tests.publish.test_folder import export_step
from tests.trained_project import write_model, write_sections

PUBLISHED = Path("published/tiny")
MAIN = PUBLISHED / "main"
REPORT = Path("reports/evaluate.json")


class Terminal:
    """`parrotflow published ...` in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *words: str) -> str:
        """What the command prints."""
        self.monkeypatch.setattr(sys, "argv", ["published", *words])
        self.capsys.readouterr()
        main()
        return self.capsys.readouterr().out

    def json(self, *words: str) -> object:
        return json.loads(self(*words, "--json"))


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(monkeypatch, capsys)


def publish_with(bits_per_byte: float, seed: int = 0) -> str:
    """Publish another model with that evaluation; the revision's name."""
    write_model(Path(), seed=seed)
    write_json(REPORT, read_json(REPORT) | {"bits_per_byte": bits_per_byte})
    publish()
    return MAIN.resolve().name


@pytest.fixture
def three(project: Path) -> list[str]:
    """Revisions of 3, 2 and 1 bits per byte; main leads to the last."""
    return [publish_with(value, seed) for seed, value in enumerate((3.0, 2.0, 1.0))]


def test_list_names_every_revision_and_the_one_that_main_leads_to(three: list[str], published: Terminal) -> None:
    rows = published.json("list")

    assert isinstance(rows, list)
    assert {row["revision"]: row["bits_per_byte"] for row in rows} == dict(zip(three, (3.0, 2.0, 1.0), strict=True))
    assert [row["revision"] for row in rows if row["main"]] == [three[-1]]
    weights = (MAIN / "model.safetensors").stat().st_size
    assert all(row["bytes"] > row["bytes_of_its_own"] > weights for row in rows)  # the tokenizer is shared
    text = published("list")
    assert [line.split()[:2] for line in text.splitlines() if line.startswith("*")] == [["*", three[-1]]]


def test_show_and_path_take_the_first_digits_of_a_name(three: list[str], published: Terminal) -> None:
    shown = published.json("show", three[0][:6])

    assert isinstance(shown, dict)
    assert shown["revision"] == three[0]
    assert shown["files"]["model.safetensors"] == (MAIN / "model.safetensors").stat().st_size
    assert published("path", three[0][:6]) == f"{(PUBLISHED / 'revisions' / three[0]).absolute()}\n"
    assert published("path").strip().endswith(three[-1])
    assert three[1] in published("show", three[1])


def test_show_says_how_much_of_the_trainings_time_was_useful(project: Path, published: Terminal) -> None:
    publish_with(3.0)
    assert "useful time" not in published("show")

    write_model(project, seed=1)
    facts = {"device": "abacus", "processes": 1, "threads_per_process": 2, "compiled": False}
    times = {"effective_training_time_ratio": 0.9421, "total_seconds": 3753.2, "interruptions": 2}
    write_json(Path("reports/train_speed.json"), facts | times | {"weights_sha256": weights_sha256()})
    publish()

    lines = published("show").splitlines()
    assert ["useful", "time", "94.2%", "of", "1:02:33,", "2", "interruptions"] in map(str.split, lines)
    shown = published.json("show")
    assert isinstance(shown, dict)
    assert shown["training_time"] == times
    assert "94.2" not in (MAIN / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("given", ["", "0123456789abcdef"])
def test_a_name_that_means_none_or_several_is_refused(three: list[str], published: Terminal, given: str) -> None:
    with pytest.raises(UserError, match="ambiguous in published/tiny" if given == "" else "no revision of"):
        published("show", given)


def test_where_the_revision_of_main_was_deleted_its_name_is_told_and_a_rollback_works(
    three: list[str], published: Terminal
) -> None:
    shutil.rmtree(MAIN.resolve())

    with pytest.raises(
        UserError, match=f"{three[2]}: no revision of published/tiny; there are: {three[0]}, {three[1]}"
    ):
        published("show")
    published("rollback")
    assert MAIN.resolve().name == three[1]


def test_rollback_leads_main_back_step_by_step(three: list[str], published: Terminal) -> None:
    assert published("rollback") == f"main leads to {three[1]}; before: {three[2]}\n"
    published("rollback")
    assert MAIN.resolve().name == three[0]

    with pytest.raises(UserError, match=f"no revision that main led to before {three[0]} is recorded"):
        published("rollback")


def test_a_rollback_is_kept_by_the_receipt_and_ended_by_the_next_better_publication(
    three: list[str], published: Terminal
) -> None:
    receipt = (PUBLISHED / "receipt.json").read_bytes()
    published("rollback")
    assert (PUBLISHED / "receipt.json").read_bytes() == receipt

    with pytest.raises(RefusedError, match=r"the model has 2.5 bits per byte, main has 2"):
        publish_with(2.5, seed=3)
    assert publish_with(1.5, seed=4) == MAIN.resolve().name


def test_promote_is_past_the_gate_only_where_it_is_told(three: list[str], published: Terminal) -> None:
    with pytest.raises(RefusedError, match="has 3 bits per byte, main has 1; main was not moved; --allow-worse"):
        published("promote", three[0])
    assert MAIN.resolve().name == three[2]
    assert RefusedError.exit_code == EXIT_REFUSED

    assert "bits per byte 3, main has 1: +2\n" in published("promote", three[0], "--allow-worse")
    assert MAIN.resolve().name == three[0]
    assert "bits per byte 1, main has 3: -2\n" in published("promote", three[2])
    assert "already" in published("promote", three[2])


def test_remove_keeps_what_main_leads_to_and_says_what_becomes_free(three: list[str], published: Terminal) -> None:
    with pytest.raises(UserError, match="main leads to it, so it is not removed"):
        published("remove", "main")
    own = next(row["bytes_of_its_own"] for row in published.json("list") if row["revision"] == three[0])  # type: ignore[attr-defined]
    before = used()

    text = published("remove", three[0])

    assert used() == before - own
    assert text.startswith(f"removed {three[0]}: ")
    assert sorted(path.name for path in (PUBLISHED / "revisions").iterdir()) == sorted(three[1:])
    assert (MAIN / "tokenizer.json").is_file()


def test_a_removal_that_was_killed_leaves_no_revision_and_is_finished_by_the_next(
    three: list[str], published: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", lambda *_: os.kill(os.getpid(), 9))
        child = os.fork()
        if child == 0:
            published("remove", three[0])
        os.waitpid(child, 0)

    revisions = PUBLISHED / "revisions"
    assert list(revisions.glob(".*"))
    assert [name in text for text in [published("list")] for name in three] == [False, True, True]
    published("remove", three[1])
    assert [path.name for path in revisions.iterdir()] == [three[2]]


def used() -> int:
    """Bytes of the distinct files of all revisions."""
    stats = [path.stat() for path in (PUBLISHED / "revisions").rglob("*") if path.is_file()]
    return sum({stat.st_ino: stat.st_size for stat in stats}.values())


def test_verify_reads_every_file(three: list[str], published: Terminal) -> None:
    assert published("verify").count("intact") == 3
    weights = PUBLISHED / "revisions" / three[0] / "model.safetensors"
    weights.unlink()
    weights.write_bytes(b"other")

    with pytest.raises(UserError, match="1 of 3 revisions are not as they were published"):
        published("verify")
    assert published("verify", three[1]).startswith(f"{three[1]}  intact (no stage is recorded for config.json, ")


def test_a_revision_that_was_copied_over_another_is_not_that_one(three: list[str]) -> None:
    first, second = (PUBLISHED / "revisions" / name for name in three[:2])
    shutil.rmtree(first)
    shutil.copytree(second, first)

    (fault,) = Folder(PUBLISHED).faults(three[0])

    assert str(fault) == f"provenance.json: differs from what was published: it is that of {three[1]}"


def test_exported_steps_are_verified_with_the_revisions_of_their_run(project: Path, published: Terminal) -> None:
    shutil.copytree("data/tokenizer", "model", dirs_exist_ok=True)  # as the training does
    export_step(2, seed=1)
    write_lock({"train": stage([], ["model"])})
    publish()
    (name,) = Folder(PUBLISHED).names()
    assert published("verify").startswith(f"{name}  intact")
    step = PUBLISHED / "runs" / ("f" * 16) / "step-00000002"
    weights = step / "model.safetensors"
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    (step / "modeling_evil.py").write_text("")
    (step / "config.json").unlink()

    found = [(Path(fault.path).name, fault.problem) for fault in Folder(PUBLISHED).faults(name)]

    assert found == [("config.json", "missing"), ("model.safetensors", "differs"), ("modeling_evil.py", "unlisted")]
    with pytest.raises(UserError, match="1 of 1 revisions are not as they were published"):
        published("verify")


def test_steps_that_another_training_of_the_run_replaced_are_those_of_its_revision(project: Path) -> None:
    shutil.copytree("data/tokenizer", "model", dirs_exist_ok=True)  # as the training does
    for seed in (1, 2):
        shutil.rmtree("model/step-00000002", ignore_errors=True)
        export_step(2, seed)
        write_lock({"train": stage([], ["model"])})
        write_sections(project, publish__description=f"Trained on machine {seed}.")
        publish()

    registry = Folder(PUBLISHED)

    assert len(registry.names()) == 2
    assert [registry.faults(name) for name in registry.names()] == [[], []]


def test_a_copy_that_did_not_keep_the_links_is_named_and_mended_as_it_says(
    three: list[str], published: Terminal
) -> None:
    target = MAIN.resolve()
    MAIN.unlink()
    shutil.copytree(target, MAIN)

    for command in (lambda: published("list"), publish):
        with pytest.raises(UserError, match=r"tiny/main: is no link, as a copy of published/tiny did not keep it"):
            command()

    shutil.rmtree(MAIN)
    published("promote", three[2])
    assert MAIN.resolve() == target


def test_a_line_of_the_history_that_publish_did_not_write_is_named(three: list[str], published: Terminal) -> None:
    with (PUBLISHED / "history.jsonl").open("a") as file:
        file.write("<<<<<<< HEAD\n")

    with pytest.raises(UserError, match=r"published/tiny/history\.jsonl: line 4: "):
        published("rollback")


def test_where_nothing_is_published_one_line_says_so(project: Path, published: Terminal) -> None:
    with pytest.raises(UserError, match="published/tiny: nothing is published here"):
        published("list")


def test_with_a_key_a_revision_without_a_signature_is_not_as_it_should_be(
    three: list[str], published: Terminal, tmp_path: Path
) -> None:
    assert published("verify", three[0]).endswith(", not signed\n")
    (tmp_path / "key.pub").write_text("ssh-ed25519 AAAA")

    with pytest.raises(UserError, match="1 of 1 revisions are not as they were published, or not signed with that key"):
        published("verify", three[0], "--key", str(tmp_path / "key.pub"))


def test_a_killed_removal_is_continued_by_the_same_command(
    three: list[str], published: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = PUBLISHED / f"revisions/.{three[0]}.removed.partial"
    left.mkdir()
    (left / "config.json").write_text("{}")

    published("remove", three[0])

    assert not left.exists()
    assert {path.name for path in (PUBLISHED / "revisions").iterdir()} == set(three[1:])


def test_what_is_on_the_hub_is_left_to_the_hub(project: Path, published: Terminal) -> None:
    write_sections(project, publish__repository="me/tiny")

    with pytest.raises(UserError, match=r"publish.repository is me/tiny: https://huggingface.co/me/tiny shows its"):
        published("list")


def test_no_interval_of_few_documents_is_listed(three: list[str], published: Terminal) -> None:
    report = MAIN.resolve() / "evaluation.json"
    values = read_json(report) | {"documents": 9}
    report.unlink()
    write_json(report, values)

    assert "too few (9)" in published("list")


def publish_with_curve(loss: float, seed: int) -> str:
    """Publish a model with a curve that ends in this loss, and that curve in its record; the revision's name."""
    CURVES.mkdir(parents=True, exist_ok=True)
    (CURVES / "training_loss.tsv").write_text(f"step\ttraining_loss\n1\t5.0\n9\t{loss}\n")
    write_model(Path(), seed=seed)
    report = Path("reports/evaluate.json")
    write_json(report, read_json(report) | {"bits_per_byte": loss})
    publish()
    revision = (PUBLISHED / "main").resolve()
    shutil.copytree(CURVES, revision / "record/reports/curves")
    return revision.name


def test_it_has_the_card_and_the_curves_with_those_before_in_grey(project: Path) -> None:
    first, second = publish_with_curve(3.0, 0), publish_with_curve(2.0, 1)
    registry = Folder(PUBLISHED)

    pages = {name: write_page(registry, name).read_text() for name in (first, second)}

    assert revision_before(registry, first) is None
    assert revision_before(registry, second) == first
    assert all("<h2>Evaluation</h2>" in page and "<td" in page for page in pages.values())
    pictures = {re.search(r'<img src="(data:image/png[^"]*)"', page)[1] for page in pages.values()}  # type: ignore[index]
    assert len(pictures) == 2
    assert f"{first}, is grey" in pages[second]
    assert "is grey" not in pages[first]


def test_markup_in_a_card_stays_text_and_nothing_is_fetched(project: Path) -> None:
    name = publish_with_curve(3.0, 0)
    card = PUBLISHED / "revisions" / name / "README.md"
    card.chmod(0o644)
    card.write_text(card.read_text() + "\n<script>alert(1)</script>\n\n[here](javascript:alert(1))\n")

    page = write_page(Folder(PUBLISHED), name).read_text()

    assert "<script" not in page
    assert 'href="javascript' not in page
    assert "&lt;script&gt;" in page
    assert re.findall(r'src="(?!data:)', page) == []


def test_without_a_screen_the_command_says_where_the_page_is(
    project: Path,
    published: Terminal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = publish_with_curve(3.0, 0)
    for variable in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("sys.platform", "linux")

    assert published("show", "--page").split()[-1] == str(Path(f".parrotflow/pages/{name}.html").absolute())
