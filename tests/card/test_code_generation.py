"""pass@k in the model card: what was measured, what it depends on, and what it is not."""

from pathlib import Path

import pytest
from huggingface_hub import EvalResult, ModelCard

from stages.card.__main__ import main
from stages.evaluate.score.__main__ import main as score
from stages.formats.evaluation.generation import (
    Completion,
    Generation,
    ProblemSetReceipt,
    read_completions,
    write_completions,
)
from stages.formats.evaluation.problems import problems_sha256, read_written_problems
from stages.formats.evaluation.scores import PassAtK, ScoreReport, SetScore
from tests.trained_project import write_sections

CARD = Path("data/card/README.md")


def section() -> str:
    """The card's section on code generation; empty where there is none."""
    main()
    return CARD.read_text().partition("\n## Code generation\n")[2].partition("\n## ")[0]


def entries() -> list[EvalResult]:
    """What the Hub reads of it."""
    results = ModelCard.load(CARD).data.eval_results or []
    return [result for result in results if result.task_name == "Code Generation"]


def write_scored(*names: str, interval: tuple[float, float] | None = (0.125, 0.5), problems: int = 164) -> ScoreReport:
    """The project's score report as if it had these problems of each set, with 20 samples of each."""
    score = PassAtK(value=0.25, interval_95=interval)
    sets = {
        name: SetScore(
            problems=problems,
            problems_sha256=f"sha256 of {name}",
            samples=20 * problems,
            results={"passed": 1, "assertion": 3279},
            left_out={},
            pass_at_k={"1": score, "10": score, "2": score},
        )
        for name in names
    }
    changes = {"ran": True, "sets": sets, "isolation": "bubblewrap+|", "convention": "As *it* is."}
    report = ScoreReport.read().model_copy(update=changes)
    report.write()
    return report


def write_problem_set(name: str) -> None:
    """The project's generation report as if HumanEval's problems had come from there."""
    generation = Generation.read()
    receipt = ProblemSetReceipt(name=name, problems=164)
    receipts = generation.receipts.model_copy(update={"problem_sets": {"sha256 of HumanEval": receipt}})
    generation.model_copy(update={"receipts": receipts}).write()


@pytest.mark.needs_bwrap
def test_the_card_shows_what_the_stage_score_measured(project: Path) -> None:
    solutions = {problem.task_id: problem.solution for problem in read_written_problems()}

    def solved(one: Completion) -> Completion:
        right = one.sample == 0 and one.task_id in ("parrotflow/0", "parrotflow/1", "parrotflow/2")
        return one.model_copy(update={"completion": solutions[one.task_id] if right else "    raise KeyError\n"})

    write_completions([solved(one) for one in read_completions()])
    write_sections(Path(), score__run_generated_code=True, score__k=[1, 2])
    score()

    text = section()

    low, high = ScoreReport.read().sets["parrotflow"].pass_at_k["1"].interval_95 or (0, 0)
    assert f"| parrotflow | pass\\@1 | 0.125 | {low:.4g} to {high:.4g} | 12 | 2 |" in text
    assert "| parrotflow | pass\\@2 | 0.25 |" in text
    assert "Sampled with temperature 0.8, top-p 0.95, at most 6 new tokens, seed 0." in text
    assert "in a sandbox (bubblewrap+rlimits+seccomp)." in text
    assert f"| parrotflow | evaluation/problems/python.jsonl | {problems_sha256(read_written_problems())} |" in text
    assert "Not a published benchmark: parrotflow (12 problems)." in text
    assert [(one.dataset_type, one.dataset_name, one.metric_type, one.metric_value) for one in entries()] == [
        ("evaluation/problems/python.jsonl", "parrotflow (12 problems)", "pass@1", 0.125),
        ("evaluation/problems/python.jsonl", "parrotflow (12 problems)", "pass@2", 0.25),
    ]


def test_if_nothing_was_run_or_completed_the_card_does_not_speak_of_it(project: Path) -> None:
    for changes in ({}, {"ran": True, "sets": {}, "samples": 0}):
        ScoreReport.read().model_copy(update=changes).write()

        assert section() == ""
        assert entries() == []


def test_sets_and_k_are_in_order_and_what_the_report_says_is_no_markup(project: Path) -> None:
    write_scored("MBPP", "HumanEval")

    text = section()

    rows = [line.split(" | ")[:2] for line in text.splitlines() if "pass\\@" in line]
    assert rows == [[f"| {name}", f"pass\\@{k}"] for name in ("HumanEval", "MBPP") for k in (1, 2, 10)]
    assert "| HumanEval | pass\\@1 | 0.25 | 0.125 to 0.5 | 164 | 20 |" in text
    assert "(bubblewrap+\\|). As \\*it\\* is." in text
    assert "| HumanEval |  | sha256 of HumanEval |" in text
    assert "Not a published benchmark: MBPP (164 problems)." in text


def test_a_benchmark_is_named_as_such_whatever_its_file_is_called(project: Path) -> None:
    write_problem_set("evaluation/problems/mine@home.jsonl")
    write_scored("HumanEval")

    assert "| HumanEval | evaluation/problems/mine\\@home.jsonl |" in section()
    first = entries()[0]
    assert (first.task_type, first.dataset_type) == ("text-generation", "HumanEval")
    assert first.dataset_name == "HumanEval (164 problems)"
    assert first.metric_name == (
        "pass@1 (20 samples of each problem, temperature 0.8, top-p 0.95), 95 % interval 0.125 to 0.5"
    )


def test_a_set_in_the_format_of_a_benchmark_is_not_called_one(project: Path) -> None:
    write_problem_set("evaluation/problems/mine.jsonl")
    write_scored("HumanEval", problems=3)

    assert "Not a published benchmark: HumanEval (3 problems)." in section()
    assert {entry.dataset_type for entry in entries()} == {"evaluation/problems/mine.jsonl"}

    write_scored("HumanEval")
    assert "Not a published benchmark" not in section()


def test_problems_that_nothing_could_pass_are_named(project: Path) -> None:
    report = write_scored("HumanEval")
    failing = report.sets["HumanEval"].model_copy(update={"left_out": {"HumanEval/3": "ModuleNotFoundError"}})
    report.model_copy(update={"sets": {"HumanEval": failing}}).write()

    said = "Left out of pass@k on HumanEval, since their own solution fails here: HumanEval/3 (ModuleNotFoundError)."
    assert said in section()
    assert "| HumanEval | pass\\@1 | 0.25 | 0.125 to 0.5 | 163 of 164 | 20 |" in section()
    assert "Not a published benchmark: HumanEval (163 of 164 problems)." in section()


def test_few_problems_have_no_interval(project: Path) -> None:
    write_scored("HumanEval", interval=None)

    assert "| HumanEval | pass\\@1 | 0.25 |  | 164 | 20 |" in section()
    assert entries()[0].metric_name == "pass@1 (20 samples of each problem, temperature 0.8, top-p 0.95)"
