import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from lm_eval.models.huggingface import HFLM

from stages.evaluate.harness.__main__ import main
from stages.evaluate.harness.check import main as check_before_run
from stages.formats.evaluation.scores import HarnessReport
from stages.formats.model_folder import weights_sha256
from stages.runtime.errors import EXIT_USER_ERROR, UserError
from tests.evaluate.harness.conftest import ANSWERS, EXACT, TEXTS, write_task, write_writing_task
from tests.small_project import ROOT
from tests.trained_project import CONTEXT_LENGTH, write_model, write_sections

OUTS = ("reports/harness.json", "data/harness.jsonl")


def outs(project: Path) -> dict[str, bytes]:
    return {name: (project / name).read_bytes() for name in OUTS}


def samples(project: Path) -> list[dict[str, Any]]:
    lines = (project / "data/harness.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line]  # a file without rows has one blank line


def run(project: Path, *tasks: str, **params: object) -> HarnessReport:
    write_sections(project, harness__tasks=list(tasks), **{f"harness__{name}": one for name, one in params.items()})
    main()
    return HarnessReport.read()


def message_of(project: Path, *tasks: str) -> str:
    with pytest.raises(UserError) as raised:
        run(project, *tasks)
    assert raised.value.exit_code == EXIT_USER_ERROR
    return str(raised.value)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests that the model was asked, not answered from the cache."""
    found: list[Any] = []
    ask: Callable[..., Any] = HFLM._loglikelihood_tokens

    def noted(lm: HFLM, requests: list[Any], **options: Any) -> Any:
        found.extend(requests)
        return ask(lm, requests, **options)

    monkeypatch.setattr(HFLM, "_loglikelihood_tokens", noted)
    return found


def test_the_report_has_each_metric_and_what_it_was_computed_from(project: Path) -> None:
    report, rows = HarnessReport.read(), samples(project)

    assert report.harness["heldout"].keys() == {"bits_per_byte", "byte_perplexity", "word_perplexity"}
    nats = sum(-row["answers"][0] for row in rows)
    size = sum(len(text.encode()) for text in TEXTS)
    assert report.harness["heldout"]["bits_per_byte"] == pytest.approx(nats / size / math.log(2), rel=1e-5)
    assert sorted(row["target_sha256"] for row in rows) == sorted(hashlib.sha256(t.encode()).hexdigest() for t in TEXTS)
    task = report.tasks["heldout"]
    assert (task.documents, task.documents_in_task, task.num_fewshot, task.version) == (len(TEXTS), len(TEXTS), 0, "1")
    assert report.scored_with is not None
    assert report.scored_with.weights_sha256 == weights_sha256(project / "model")


def test_the_same_inputs_give_the_same_bytes_in_another_folder_and_with_another_batch_size(
    project: Path, scored_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / ".parrotflow").rename(project / "forgotten")
    monkeypatch.setenv("PARROTFLOW_HARNESS_BATCH", "3")

    run(project, "heldout")

    assert outs(project) == outs(scored_template)
    assert str(scored_template).encode() not in b"".join(outs(project).values())


def test_requests_that_the_window_cuts_are_counted_and_said(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With five examples before it no question fits into the window, which is as long as the training's sequences."""
    (project / "model/training.json").write_text('{"sequence_length": 16}')
    for name, examples in (("bare", 0), ("crowded", 5)):
        write_task(name, fewshot_split="test", num_fewshot=examples, fewshot_delimiter="\n" * CONTEXT_LENGTH)

    report = run(project, "bare", "crowded")

    tasks = report.tasks
    assert report.scored_with is not None
    assert report.scored_with.context_length == 16
    assert [(tasks[name].requests, tasks[name].requests_cut) for name in ("bare", "crowded")] == [(6, 0), (6, 6)]
    (note,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("note: "))
    assert "6 of 6 requests are longer than the model reads at once" in note


@pytest.mark.parametrize("split", ["test", "validation"])
@pytest.mark.parametrize("named", [False, True])
def test_the_examples_of_a_question_never_hold_its_answer(
    project: Path, asked: list[Any], split: str, *, named: bool
) -> None:
    keys = {"test_split": None, f"{split}_split": split} | ({"fewshot_split": split} if named else {})
    data = {"data_files": {split: "evaluation/tasks/answers.jsonl"}}
    write_task(**keys, dataset_kwargs=data, num_fewshot=len(ANSWERS) - 1)

    run(project, "own")

    assert len(asked) == len(ANSWERS)
    for (context, answer), *_ in asked:
        *examples, question = context.split("\n\n")
        assert len(examples) == len(ANSWERS) - 1
        assert f"{question}{answer}" not in examples


def test_a_task_that_fails_is_named_and_the_answers_of_the_others_are_kept(project: Path, asked: list[Any]) -> None:
    write_writing_task("longer", max_gen_toks=CONTEXT_LENGTH)
    write_task("after")

    message = message_of(project, "longer", "after")

    assert message.startswith("harness.tasks: `longer` cannot be scored (AssertionError: ")
    assert "may set `generation_kwargs.max_gen_toks`" in message
    assert "after" not in message
    assert len(asked) == len(ANSWERS)
    run(project, "after")
    assert len(asked) == len(ANSWERS)


def test_answers_of_other_weights_or_settings_at_the_same_path_are_not_used(project: Path, asked: list[Any]) -> None:
    before = run(project, "heldout")
    assert asked == []

    (project / "model/generation_config.json").write_text("{}")
    run(project, "heldout")
    again = len(asked)
    write_model(project, seed=1)
    after = run(project, "heldout")

    assert 0 < again < len(asked)
    assert after.harness != before.harness
    assert after.scored_with != before.scored_with
    assert after.tasks == before.tasks


def test_another_task_under_the_same_name_is_scored_anew(project: Path) -> None:
    before = HarnessReport.read().tasks["heldout"]
    task = project / "evaluation/tasks/heldout.yaml"
    task.write_text(task.read_text().replace("doc_to_target: text", 'doc_to_target: "{{text}}!"'))

    after = run(project, "heldout").tasks["heldout"]

    assert after.config_sha256 != before.config_sha256
    assert after.documents_sha256 == before.documents_sha256
    assert samples(project)[0]["target_sha256"] not in {hashlib.sha256(text.encode()).hexdigest() for text in TEXTS}


def test_data_that_was_changed_is_read_anew_although_its_time_is_the_same(project: Path) -> None:
    write_task()
    hashes = []
    for answer in "bd":
        (project / "evaluation/tasks/answers.jsonl").write_text(f'{{"question": "a", "answer": "{answer}"}}\n')
        os.utime(project / "evaluation/tasks/answers.jsonl", (1, 1))
        hashes.append(run(project, "own").tasks["own"].documents_sha256)

    assert hashes[0] != hashes[1]


def test_answers_that_are_drawn_follow_from_the_parameters_alone(project: Path) -> None:
    """Also if a task file has a temperature and no `do_sample`: lm-eval draws, and would keep what it has drawn."""
    write_writing_task(max_gen_toks=4, temperature=1.0)
    run(project, "write", limit=3)
    earlier = outs(project)
    run(project, "write", limit=3, seed=1)
    after = outs(project)
    shutil.rmtree(project / ".parrotflow")

    run(project, "write", limit=3, seed=1)

    assert after == outs(project)
    assert after["data/harness.jsonl"] != earlier["data/harness.jsonl"]


def test_standard_errors_are_lm_evals_and_groups_filters_and_examples_are_told_apart(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lm_eval.tasks.manager.__file__", str(project / "none/manager.py"))  # reads no 13,000 files
    write_task("choose")
    filters = [
        {"name": name, "filter": [{"function": "regex", "regex_pattern": pattern}, {"function": "take_first"}]}
        for name, pattern in (("first", "(.)"), ("rest", "^.(.*)"))
    ]
    write_task(
        "write", output_type="generate_until", metric_list=EXACT, filter_list=filters, num_fewshot=0,
        generation_kwargs={"max_gen_toks": 4, "until": ["\n"]},
    )  # fmt: skip
    average = {"metric": "acc", "aggregation": "mean", "weight_by_size": True}
    group = {"group": "both", "task": ["choose", "write"], "aggregate_metric_list": [average]}
    (project / "evaluation/tasks/both.yaml").write_text(yaml.safe_dump(group))

    report = run(project, "both", num_fewshot=2, limit=5)

    assert report.harness.keys() == {"both", "choose", "write"}
    assert report.harness["choose"].keys() == report.stderr["choose"].keys() == {"acc"}
    assert report.harness["write"].keys() == {"exact_match,first", "exact_match,rest"}
    assert report.harness["both"]["acc"] == report.harness["choose"]["acc"]
    assert {name: task.num_fewshot for name, task in report.tasks.items()} == {"choose": 2, "write": 0}
    assert {(task.documents, task.documents_in_task) for task in report.tasks.values()} == {(5, len(ANSWERS))}
    rows = [(row["task"], row["document"], row["filter"]) for row in samples(project)]
    assert rows == [("choose", number, "none") for number in range(5)] + [
        ("write", number, name) for number in range(5) for name in ("first", "rest")
    ]


def test_a_task_of_the_project_passes_the_check_before_a_run_and_a_misspelled_one_does_not(project: Path) -> None:
    write_task("mine")
    write_sections(project, harness__tasks=["mine"])
    check_before_run()

    write_sections(project, harness__tasks=["mine", "mien"])
    with pytest.raises(
        UserError, match=r"^harness\.tasks: no task `mien` in evaluation/tasks/ or in lm-eval; `lm-eval "
    ):
        check_before_run()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"unsafe_code": True}, "ValueError: Attempted to run task: own which is marked as unsafe"),
        ({"metric_list": [{"metric": "f1", "hf_evaluate": True}]}, "ValueError: the metric `f1` is a Hub script"),
        ({"doc_to_txt": "x"}, "TypeError: "),
        ({"doc_to_text": "{{ 1 / (question[0] | int - 5) }}"}, "ZeroDivisionError: "),
    ],
    ids=["runs code", "metric from the Hub", "misspelled key", "template"],
)
def test_a_task_that_lm_eval_cannot_load_or_score_is_named_with_the_reason(
    project: Path, keys: dict[str, object], message: str
) -> None:
    write_task(**keys)

    assert message_of(project, "own").startswith(f"harness.tasks: `own` cannot be scored ({message}")


def test_a_log_has_no_progress_bars_but_every_warning_and_a_task_leaves_no_bytecode(project: Path) -> None:
    write_task("choose")
    choose = project / "evaluation/tasks/choose.yaml"
    choose.write_text(choose.read_text() + "process_docs: !function own.first_two\n")
    (project / "evaluation/tasks/own.py").write_text(
        "import warnings\n"
        "def first_two(documents):\n"
        "    warnings.warn('a warning of the task')\n"
        "    return documents.select(range(2))\n"
    )
    write_writing_task(max_gen_toks=4)
    write_sections(project, harness__tasks=["heldout", "choose", "write"])
    shutil.rmtree(project / ".parrotflow")

    log = subprocess.run(
        [sys.executable, "-m", "stages.evaluate.harness"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "HF_HOME": str(project / "home")},
        capture_output=True,
        text=True,
        check=True,
    ).stderr

    assert "UserWarning: a warning of the task" in log
    assert "%|" not in log
    assert "it/s" not in log
    assert HarnessReport.read().tasks["choose"].documents == 2
    assert not (project / "evaluation/tasks/__pycache__").exists()


def test_without_tasks_there_is_nothing_to_do_and_lm_eval_is_not_even_imported(project: Path) -> None:
    write_sections(project)
    code = (
        "import sys; from stages.evaluate.harness.__main__ import main; main()\n"
        "print({'torch', 'lm_eval'} & {*sys.modules})"
    )

    shown = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    ).stdout

    assert shown == "harness.tasks is empty: nothing to do\nset()\n"
    assert HarnessReport.read().harness == {}
    assert samples(project) == []
