import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from lm_eval.models.huggingface import HFLM

from stages.evaluate.harness.__main__ import main
from stages.evaluate.model import answers_key
from stages.formats.evaluation.harness import HarnessReport
from stages.formats.model_folder import weights_sha256
from stages.runtime.entry import UserError
from tests.evaluate.harness.conftest import ANSWERS, TEXTS, write_task
from tests.small_project import ROOT
from tests.trained_project import CONTEXT_LENGTH, write_model, write_sections

OUTS = ("reports/harness.json", "data/harness.jsonl")


def outs(project: Path) -> dict[str, bytes]:
    return {name: (project / name).read_bytes() for name in OUTS}


def samples(project: Path) -> list[dict[str, Any]]:
    lines = (project / "data/harness.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line]  # a file without rows has one blank line


def refuse_to_answer(*_: object, **__: object) -> None:
    raise AssertionError("the model was asked")


def test_the_report_has_each_metric_its_interval_and_what_it_was_computed_from(project: Path) -> None:
    report = HarnessReport.read()

    assert report.harness["heldout"].keys() == {"bits_per_byte", "byte_perplexity", "word_perplexity"}
    for metric, value in report.harness["heldout"].items():
        low, high = report.interval_95["heldout"][metric]  # lm-eval computes no standard error of these
        assert value is not None
        assert low < value < high
    task = report.tasks["heldout"]
    assert (task.documents, task.documents_in_task, task.num_fewshot, task.version) == (len(TEXTS), len(TEXTS), 0, "1")
    assert report.scored_with is not None
    assert report.scored_with.weights_sha256 == weights_sha256(project / "model")


def test_the_metrics_follow_from_the_file_of_samples(project: Path) -> None:
    rows = samples(project)

    nats = sum(-row["answers"][0] for row in rows)
    size = sum(row["metrics"]["bits_per_byte"][1] for row in rows)
    assert size == sum(len(text.encode()) for text in TEXTS)
    bits_per_byte = HarnessReport.read().harness["heldout"]["bits_per_byte"]
    assert bits_per_byte == pytest.approx(nats / size / math.log(2), rel=1e-5)
    assert sorted(row["target_sha256"] for row in rows) == sorted(hashlib.sha256(t.encode()).hexdigest() for t in TEXTS)


def test_the_same_inputs_give_the_same_bytes_in_another_folder_and_with_another_batch_size(
    project: Path, scored_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in OUTS:
        (project / name).unlink()
    (project / ".parrotflow").rename(project / "forgotten")
    monkeypatch.setenv("PARROTFLOW_HARNESS_BATCH", "3")

    main()

    assert outs(project) == outs(scored_template)
    assert str(scored_template).encode() not in b"".join(outs(project).values())


def test_requests_that_the_window_cuts_are_counted_and_said(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With five examples before it no question fits into the window; without any each does."""
    for name, examples in (("bare", 0), ("crowded", 5)):
        write_task(name, fewshot_split="test", num_fewshot=examples, fewshot_delimiter="\n" * CONTEXT_LENGTH)
    write_sections(project, harness__tasks=["bare", "crowded"])

    main()

    tasks = HarnessReport.read().tasks
    assert [(tasks[name].requests, tasks[name].requests_cut) for name in ("bare", "crowded")] == [(6, 0), (6, 6)]
    (note,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("note: crowded"))
    assert "6 of 6 requests are longer than the model reads at once" in note


def test_a_task_whose_answers_would_fill_the_window_is_refused_before_any_task_is_scored(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
    write_task("first")
    write_task("write", output_type="generate_until", metric_list=[exact], generation_kwargs={"until": ["x"]})
    write_sections(project, harness__tasks=["first", "write"])
    monkeypatch.setattr(HFLM, "_loglikelihood_tokens", refuse_to_answer)

    with pytest.raises(UserError, match=r"write: its answers have up to 256 .* reads 32 .*\{max_gen_toks: 8\}`"):
        main()


def test_answers_of_the_same_weights_are_not_asked_for_again(
    project: Path, scored_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HFLM, "_loglikelihood_tokens", refuse_to_answer)

    main()

    assert outs(project) == outs(scored_template)


def test_damaged_answers_are_asked_for_again(project: Path, scored_template: Path) -> None:
    (answers,) = (project / ".parrotflow/cache/harness").glob("*/*/log.jsonl")
    content = bytearray(answers.read_bytes())
    content[-3] ^= 1  # in the number of an answer
    answers.write_bytes(content)

    main()

    assert outs(project) == outs(scored_template)


def test_answers_that_a_kill_has_left_are_kept_and_the_others_asked_for(
    project: Path, scored_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task("choose")
    write_sections(project, harness__tasks=["choose"])
    main()
    whole = outs(project)
    (answers,) = [
        path for path in project.glob(".parrotflow/cache/harness/*/*/log.jsonl") if b"[-" in path.read_bytes()
    ]
    lines = answers.read_bytes().splitlines(keepends=True)
    asked: list[Any] = []
    ask = HFLM._loglikelihood_tokens
    monkeypatch.setattr(
        HFLM, "_loglikelihood_tokens", lambda self, some, **how: asked.extend(some) or ask(self, some, **how)
    )

    for kept, missing in ((len(lines), 0), (3, len(ANSWERS) - 2)):
        asked.clear()
        answers.write_bytes(b"".join(lines[:kept]) + b"\n0000")
        main()
        assert len(asked) == missing
        assert outs(project) == whole


@pytest.mark.parametrize("name", ["generation_config.json", "chat_template.jinja"])
def test_answers_of_other_settings_of_the_model_are_asked_for_again(
    project: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "model" / name).write_text("{}")
    monkeypatch.setattr(HFLM, "_loglikelihood_tokens", refuse_to_answer)

    with pytest.raises(UserError, match="the model was asked"):
        main()


def test_a_task_that_lm_eval_cannot_score_is_named(project: Path) -> None:
    write_task(doc_to_text="{{ 1 / (question[0] | int - 5) }}")
    write_sections(project, harness__tasks=["own"])

    with pytest.raises(UserError, match=r"^harness.tasks: own: lm-eval cannot score it \(.*; correct the task's file"):
        main()


def test_other_weights_at_the_same_path_give_other_scores(project: Path) -> None:
    before = HarnessReport.read()
    write_model(project, seed=1)

    main()

    after = HarnessReport.read()
    assert after.harness != before.harness
    assert after.scored_with != before.scored_with
    assert after.tasks == before.tasks


def test_another_task_under_the_same_name_is_scored_anew(project: Path) -> None:
    before = HarnessReport.read().tasks["heldout"]
    task = project / "evaluation/tasks/heldout.yaml"
    task.write_text(task.read_text().replace("doc_to_target: text", 'doc_to_target: "{{text}}!"'))

    main()

    after = HarnessReport.read().tasks["heldout"]
    assert after.config_sha256 != before.config_sha256
    assert after.documents_sha256 == before.documents_sha256
    assert samples(project)[0]["target_sha256"] not in {hashlib.sha256(text.encode()).hexdigest() for text in TEXTS}


@pytest.mark.parametrize("changes", [{"harness__seed": 1}, {"harness__limit": None}], ids=["seed", "limit"])
def test_answers_that_are_drawn_follow_from_the_parameters_alone(project: Path, changes: dict[str, Any]) -> None:
    """Also where a task file has a temperature and no `do_sample`: lm-eval draws, and would keep what it has drawn."""
    exact = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
    write_task(
        "write", output_type="generate_until", metric_list=[exact],
        generation_kwargs={"max_gen_toks": 4, "until": [], "temperature": 1.0},
    )  # fmt: skip
    write_sections(project, harness__tasks=["write"], harness__limit=3)
    main()
    earlier = outs(project)
    write_sections(project, **{"harness__tasks": ["write"], "harness__limit": 3} | changes)
    main()
    after = outs(project)
    shutil.rmtree(project / ".parrotflow")
    main()

    assert after == outs(project)
    assert after["data/harness.jsonl"] != earlier["data/harness.jsonl"]


def test_standard_errors_are_lm_evals_and_groups_filters_and_examples_are_told_apart(project: Path) -> None:
    write_task("choose")
    exact = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
    filters = [
        {"name": name, "filter": [{"function": "regex", "regex_pattern": pattern}, {"function": "take_first"}]}
        for name, pattern in (("first", "(.)"), ("rest", "^.(.*)"))
    ]
    write_task(
        "write", output_type="generate_until", metric_list=[exact], filter_list=filters, num_fewshot=0,
        generation_kwargs={"max_gen_toks": 4, "until": ["\n"]},
    )  # fmt: skip
    average = {"metric": "acc", "aggregation": "mean", "weight_by_size": True}
    group = {"group": "both", "task": ["choose", "write"], "aggregate_metric_list": [average]}
    (project / "evaluation/tasks/both.yaml").write_text(yaml.safe_dump(group))
    write_sections(project, harness__tasks=["both"], harness__num_fewshot=2, harness__limit=5)

    main()

    report = HarnessReport.read()
    assert report.harness.keys() == {"both", "choose", "write"}
    assert report.harness["choose"].keys() == report.stderr["choose"].keys() == {"acc"}
    assert report.harness["write"].keys() == {"exact_match,first", "exact_match,rest"}
    assert report.harness["both"]["acc"] == report.harness["choose"]["acc"]
    assert report.interval_95 == {}
    assert {name: task.num_fewshot for name, task in report.tasks.items()} == {"choose": 2, "write": 0}
    assert {(task.documents, task.documents_in_task) for task in report.tasks.values()} == {(5, len(ANSWERS))}
    rows = [(row["task"], row["document"], row["filter"]) for row in samples(project)]
    assert rows == [("choose", number, "none") for number in range(5)] + [
        ("write", number, name) for number in range(5) for name in ("first", "rest")
    ]


def test_libraries_are_told_to_report_nothing_before_they_are_imported() -> None:
    told = ("HF_UPDATE_DOWNLOAD_COUNTS", "HF_HUB_DISABLE_TELEMETRY")
    program = (
        "import stages.evaluate.harness.__main__, datasets, evaluate, huggingface_hub as hub\n"
        "print(datasets.config.HF_UPDATE_DOWNLOAD_COUNTS, evaluate.config.HF_UPDATE_DOWNLOAD_COUNTS)\n"
        "print(evaluate.config.HF_EVALUATE_OFFLINE, hub.constants.HF_HUB_DISABLE_TELEMETRY)\n"
    )
    variables = {name: value for name, value in os.environ.items() if name not in told}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=variables, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False", "True", "True"]


def test_a_log_has_no_progress_bars_but_every_warning(project: Path) -> None:
    write_task("choose")
    choose = project / "evaluation/tasks/choose.yaml"
    choose.write_text(choose.read_text() + "process_docs: !function own.warned\n")
    (project / "evaluation/tasks/own.py").write_text(
        "import warnings\ndef warned(documents):\n    warnings.warn('a warning of the task')\n    return documents\n"
    )
    exact = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
    write_task(
        "write", output_type="generate_until", metric_list=[exact], generation_kwargs={"max_gen_toks": 4, "until": []}
    )
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"harness__limit": 0}, "harness.limit = 0: Input should be greater than or equal to 1"),
        ({"harness__tasks": "heldout"}, "harness.tasks = 'heldout': "),
        ({"harness__seed": 2**32}, "harness.seed = 4294967296: Input should be less than 4294967296"),
        ({"harness__bootstrap_resamples": 1}, "harness.bootstrap_resamples = 1"),
    ],
)
def test_a_parameter_out_of_range_is_refused(project: Path, changes: dict[str, Any], message: str) -> None:
    write_sections(project, **changes)

    with pytest.raises(UserError, match=re.escape(message)):
        main()


def test_positions_that_were_not_trained_are_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "model/training.json").write_text('{"sequence_length": 16}')

    main()

    assert f"windows of {CONTEXT_LENGTH} tokens, and its training's sequences had 16" in capsys.readouterr().out


def test_answers_of_another_kind_of_device_are_asked_for_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu = answers_key(project / "model")
    monkeypatch.setattr("stages.evaluate.model.inference_device", lambda: "cuda:1")

    assert answers_key(project / "model") != on_cpu
