"""The numbers at the head of a card, as a verification compares them with the reports."""

import shutil
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from stages.formats.model_folder import weights_sha256
from stages.formats.revision.model_index import contradictions
from tests.publish.test_card import harness_report
from tests.publish.test_code_generation import CARD, COMMIT, section, write_problem_set, write_scored


@pytest.fixture
def revision(project: Path, tmp_path: Path) -> Path:
    """The card, the evaluation and the reports of two sets of code problems, one of the Hub, and of a benchmark."""
    write_problem_set(f"openai/openai_humaneval@{COMMIT}")
    write_scored("HumanEval", "MBPP")
    harness_report(documents=100).write()
    section()
    folder = tmp_path / "revision"
    folder.mkdir()
    for name in ("README.md", "evaluation.json"):
        shutil.copyfile(CARD.with_name(name), folder / name)
    shutil.copytree("reports", folder / "record/reports")
    return folder


Result = dict[str, Any]


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
