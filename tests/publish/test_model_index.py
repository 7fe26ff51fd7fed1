"""The numbers at the head of a card, as a verification compares them with the reports."""

import shutil
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import parse_eval_result_entries
from ruamel.yaml import YAML

from stages.formats.model_folder import weights_sha256
from stages.formats.revision.model_index import contradictions
from stages.formats.revision.verify import verify_files
from stages.publish.__main__ import main as publish
from stages.publish.params import PublishParams
from stages.runtime.entry import UserError
from tests.flows.reproduce.forger import copy_of
from tests.publish.test_card import harness_report
from tests.publish.test_code_generation import CARD, COMMIT, section, write_problem_set, write_scored
from tests.small_project import SECTIONS, changed
from tests.trained_project import write_sections


@pytest.fixture
def revision(project: Path, tmp_path: Path) -> Path:
    """The card, the evaluation and the reports of two sets of code problems, one of the Hub, and of a benchmark."""
    write_problem_set(f"openai/openai_humaneval@{COMMIT}")
    write_scored("HumanEval", "MBPP")
    harness_report(documents=100).write()
    section()
    folder = tmp_path / "revision"
    folder.mkdir()
    for name in ("README.md", "evaluation.json", "evaluation_receipt.json"):
        shutil.copyfile(CARD.with_name(name), folder / name)
    shutil.copytree("reports", folder / "record/reports")
    return folder


Result = dict[str, Any]

OTHERS = ("generate", "score", "harness")
"""Stages that have a receipt of what they measured."""


def edit_card(folder: Path, kind: str, edit: Callable[[Result], object]) -> None:
    """Edit the results of a type of data set."""
    _, head, rest = (folder / "README.md").read_text().split("---\n", 2)
    values, text, yaml = YAML(typ="safe").load(head), StringIO(), YAML(typ="safe")
    found = [result for result in values["model-index"][0]["results"] if result["dataset"]["type"] == kind]
    assert found
    for result in found:
        edit(result)
    yaml.dump(values, text)
    (folder / "README.md").write_text(f"---\n{text.getvalue()}---\n{rest}")


def value(metric: str, number: float) -> Callable[[Result], object]:
    return lambda result: [one.update(value=number) for one in result["metrics"] if one["type"] == metric]


def test_an_honest_card_has_the_numbers_of_the_reports(revision: Path) -> None:
    assert "value: 0.25" in (revision / "README.md").read_text()
    assert list(contradictions(revision, weights_sha256())) == []


@pytest.mark.parametrize("interval", [None, (0.125, 0.5)])
def test_also_without_an_interval_and_with_too_few_problems(
    project: Path, tmp_path: Path, interval: tuple[float, float] | None
) -> None:
    write_scored("mine", problems=3, interval=interval)
    section()
    shutil.copytree("reports", tmp_path / "revision/record/reports")
    for name in ("README.md", "evaluation.json"):
        shutil.copyfile(CARD.with_name(name), tmp_path / "revision" / name)

    assert list(contradictions(tmp_path / "revision", weights_sha256())) == []


@pytest.mark.parametrize(
    ("kind", "edit"),
    [
        ("openai/openai_humaneval", value("pass@1", 1.0)),  # `passed` is 1, and `ran` is true
        ("openai/openai_humaneval", value("pass@1", 0.5)),  # an end of its interval
        ("openai/openai_humaneval", value("pass@1", 164)),  # the number of problems
        ("MBPP", lambda result: result["dataset"].update(name="MBPP (974 problems)")),
        ("MBPP", lambda result: result["dataset"].update(type="google/mbpp")),
        ("MBPP", lambda result: result["metrics"][0].update(type="pass@100")),
        ("quiz|", value("acc", 0.125)),  # another metric
        ("quiz|", value("acc", 0.01)),  # its standard error
        ("quiz|", lambda result: result["dataset"].update(type="mmlu")),
        ("quiz|", lambda result: result["dataset"].update(name="MMLU")),
        ("held-out", value("loss", 0.25)),
        ("held-out", value("loss", True)),
    ],
)
def test_a_number_that_the_reports_have_elsewhere_is_a_contradiction(
    revision: Path, kind: str, edit: Callable[[Result], object]
) -> None:
    edit_card(revision, kind, edit)

    assert list(contradictions(revision, weights_sha256()))


@pytest.mark.parametrize(
    "hide",
    [
        lambda card: f"\n {card}",
        lambda card: f"\ufeff{card}",
        lambda card: card.replace("---\n", "---\nlicense: mit\n---x: 1\n", 1),
        lambda card: card.replace("\n---\n", "\n--- \t\n", 1),
    ],
)
def test_a_head_is_found_where_the_client_of_the_hub_finds_it(revision: Path, hide: Callable[[str], str]) -> None:
    edit_card(revision, "held-out", value("loss", 0.25))
    card = revision / "README.md"
    card.write_text(hide(card.read_text().replace("license: apache-2.0\n", "")))

    assert list(contradictions(revision, weights_sha256()))


@pytest.mark.parametrize("name", ["evaluation_receipt", *(f"record/reports/{one}_receipt" for one in OTHERS)])
def test_a_receipt_of_another_run_is_a_contradiction(revision: Path, name: str) -> None:
    file = revision / f"{name}.json"
    text = file.read_text()
    assert weights_sha256() in text
    file.write_text(text.replace(weights_sha256(), "e" * 64))

    assert list(contradictions(revision, weights_sha256())) == [f"{name}.json was measured on other weights"]


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b'{"a":' * 100_000])
@pytest.mark.parametrize("name", ["harness", "score", "score_receipt", "generate_receipt", "new_receipt"])
def test_a_damaged_report_is_a_contradiction(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "record/reports").mkdir(parents=True)
    (tmp_path / "README.md").write_text("---\n---\n")
    (tmp_path / f"record/reports/{name}.json").write_bytes(content)

    (fault,) = contradictions(tmp_path, "")
    assert fault.startswith("a report cannot be read (")


def test_a_number_that_is_too_long_to_show_is_a_contradiction(tmp_path: Path) -> None:
    metrics = "[{type: acc, value: 0x" + "f" * 9000 + "}]"
    head = f"model-index: [{{results: [{{dataset: {{type: a, name: b}}, metrics: {metrics}}}]}}]"
    (tmp_path / "README.md").write_text(f"---\n{head}\n---\n")

    assert list(contradictions(tmp_path, "")) == ["its head is no model-index (int too large to convert to float)"]


def test_without_the_reports_no_number_is_believed(revision: Path) -> None:
    shutil.rmtree(revision / "record/reports")

    assert {line.split(" of ")[1].split(" is ")[0] for line in contradictions(revision, weights_sha256())} == {
        "openai/openai_humaneval",
        "MBPP",
        "quiz|",
    }


MAIN = Path("published/tiny/main")
FILE = ".eval_results/owner--quiz--quiz.yaml"
QUIZ = {"result": "quiz|", "metric": "acc", "dataset": "owner/quiz", "task_id": "quiz"}
HUMAN_EVAL = {
    "result": "openai/openai_humaneval",
    "metric": "pass@1",
    "dataset": "openai/openai_humaneval",
    "task_id": "h",
}


@pytest.fixture
def published(project: Path) -> Path:
    """A published revision with a result of a benchmark and one of code problems."""
    write_problem_set(f"openai/openai_humaneval@{COMMIT}")
    write_scored("HumanEval")
    harness_report(documents=100).write()
    write_sections(Path(), publish__benchmarks=[QUIZ, HUMAN_EVAL])
    publish()
    return MAIN.resolve()


def test_each_benchmark_has_a_file_that_the_client_of_the_hub_reads(published: Path) -> None:
    files = sorted((published / ".eval_results").iterdir())

    assert [file.name for file in files] == ["openai--openai_humaneval--h.yaml", "owner--quiz--quiz.yaml"]
    code, quiz = (parse_eval_result_entries(yaml.safe_load(file.read_text()))[0] for file in files)
    assert (quiz.dataset_id, quiz.task_id, quiz.value) == ("owner/quiz", "quiz", 0.25)
    assert quiz.notes == "acc (5-shot, lm-evaluation-harness), 95 % interval 0.2304 to 0.2696"
    assert (code.value, code.dataset_revision) == (0.25, COMMIT)


def faults(folder: Path) -> list[tuple[str, str]]:
    return [(fault.path, fault.problem) for fault in verify_files(folder) if fault.path.startswith(".eval_results")]


@pytest.mark.parametrize(
    ("path", "edit", "problem"),
    [
        (FILE, lambda text: text, None),
        (FILE, lambda text: text.replace("0.25", "0.95"), "contradicts"),
        (FILE, lambda text: text + text, "contradicts"),
        (FILE, lambda text: "{", "contradicts"),
        (".eval_results/other.yaml", lambda text: text, "unknown"),
    ],
)
def test_a_verification_compares_them_with_the_card(
    published: Path, tmp_path: Path, path: str, edit: Callable[[str], str], problem: str | None
) -> None:
    forger = copy_of(published, tmp_path / "forged")
    forger.add(path, edit((published / FILE).read_text()))
    forger.seal()

    assert faults(forger.folder) == ([(path, problem)] if problem else [])


def test_a_result_that_was_removed_is_missing(published: Path, tmp_path: Path) -> None:
    forger = copy_of(published, tmp_path / "forged")
    (forger.folder / FILE).unlink()
    forger.seal()

    assert faults(forger.folder) == [(FILE, "missing")]


def test_a_result_that_the_card_does_not_have_is_refused(project: Path) -> None:
    harness_report(documents=99).write()  # of 100
    write_sections(Path(), publish__benchmarks=[QUIZ])

    with pytest.raises(
        UserError, match=r"publish\.benchmarks: the card has no acc of quiz\|; it has: bits_per_byte of"
    ):
        publish()


def test_a_leaderboard_takes_one_result() -> None:
    section = changed(SECTIONS["publish"], benchmarks=[QUIZ, QUIZ | {"metric": "f1"}])

    with pytest.raises(ValueError, match="owner/quiz quiz is there twice"):
        PublishParams.model_validate(section)
