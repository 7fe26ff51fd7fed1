"""`.eval_results/`: the card's numbers for the leaderboards of the Hub, and their verification."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from huggingface_hub import parse_eval_result_entries

from stages.formats.revision.verify import verify_files
from stages.publish.__main__ import main as publish
from stages.publish.params import PublishParams
from stages.runtime.entry import UserError
from tests.flows.reproduce.forger import copy_of
from tests.publish.test_card import harness_report
from tests.publish.test_code_generation import COMMIT, write_problem_set, write_scored
from tests.small_project import SECTIONS, changed
from tests.trained_project import write_sections

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
def revision(project: Path) -> Path:
    """A published revision with a result of a benchmark and one of code problems."""
    write_problem_set(f"openai/openai_humaneval@{COMMIT}")
    write_scored("HumanEval")
    harness_report(documents=100).write()
    write_sections(Path(), publish__benchmarks=[QUIZ, HUMAN_EVAL])
    publish()
    return MAIN.resolve()


def test_each_benchmark_has_a_file_that_the_client_of_the_hub_reads(revision: Path) -> None:
    files = sorted((revision / ".eval_results").iterdir())

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
    revision: Path, tmp_path: Path, path: str, edit: Callable[[str], str], problem: str | None
) -> None:
    forger = copy_of(revision, tmp_path / "forged")
    forger.add(path, edit((revision / FILE).read_text()))
    forger.seal()

    assert faults(forger.folder) == ([(path, problem)] if problem else [])


def test_a_result_that_was_removed_is_missing(revision: Path, tmp_path: Path) -> None:
    forger = copy_of(revision, tmp_path / "forged")
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
