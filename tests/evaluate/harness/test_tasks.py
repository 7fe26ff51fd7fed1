import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stages.evaluate.harness.params import HarnessParams
from stages.evaluate.harness.tasks import index_tasks, load_error, loaded
from stages.runtime.entry import EXIT_UNAVAILABLE, EXIT_USER_ERROR, UserError
from tests.evaluate.harness.conftest import ANSWERS, write_task
from tests.small_project import ROOT


def params(*tasks: str, num_fewshot: int | None = None) -> HarnessParams:
    return HarnessParams(tasks=tasks, num_fewshot=num_fewshot, limit=None, bootstrap_resamples=100, seed=0)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))


def load(*names: str) -> None:
    manager = index_tasks(names)
    for name in names:
        with loaded(name, manager, params(*names)):
            pass


def message_of(*names: str) -> str:
    with pytest.raises(UserError) as raised:
        load(*names)
    assert raised.value.exit_code == EXIT_USER_ERROR
    return str(raised.value)


def test_a_task_file_of_ones_own_is_loaded_with_the_functions_next_to_it(tmp_path: Path) -> None:
    write_task()
    file = tmp_path / "evaluation/tasks/own.yaml"
    file.write_text(file.read_text() + "process_docs: !function own.first_two\n")
    file.with_suffix(".py").write_text("def first_two(documents):\n    return documents.select(range(2))\n")
    manager = index_tasks(("own",))

    with loaded("own", manager, params("own")) as tasks:
        documents = list(tasks["tasks"]["own"].eval_docs)

    assert documents == ANSWERS[:2]
    assert sorted(path.name for path in file.parent.iterdir()) == ["answers.jsonl", "own.py", "own.yaml"]
    assert not (tmp_path / "home/datasets").exists()


@pytest.mark.parametrize(
    ("name", "group", "task"),
    [
        ("own", "group: other\ntask: [own]\n", "own"),
        ("mine", "group: mine\ntask: [{task: own, num_fewshot: 1}]\n", "own"),
        ("mine", "group: mine\ntask: [{group: inner, task: [own]}]\n", "own"),
        ("mine", "group: mine\ntask: [own, as_on_the_hub]\n", "own"),
        ("as_on_the_hub", "group: other\ntask: [own]\n", "as_on_the_hub"),
    ],
)
def test_data_that_was_changed_is_read_anew_although_its_time_is_the_same(
    tmp_path: Path, name: str, group: str, task: str
) -> None:
    write_task()
    write_task("as_on_the_hub", dataset_path="repository", dataset_kwargs={})
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository/test.jsonl").write_text('{"question": "a", "answer": "b"}\n')
    (tmp_path / "evaluation/tasks/group.yaml").write_text(group)
    data = tmp_path / {"own": "evaluation/tasks/answers.jsonl", "as_on_the_hub": "repository/test.jsonl"}[task]
    manager = index_tasks((name,))
    answers = []
    for text in ('{"question": "a", "answer": "b"}\n', '{"question": "c", "answer": "d"}\n'):
        data.write_text(text)
        os.utime(data, (1, 1))
        with loaded(name, manager, params(name)) as tasks:
            answers.append(tasks["tasks"][task].eval_docs[0]["answer"])

    assert answers == ["b", "d"]


def test_examples_are_those_that_params_ask_for_unless_the_task_is_defined_without() -> None:
    write_task("own")
    write_task("zero", num_fewshot=0)
    asked = params("own", "zero", num_fewshot=2)
    manager = index_tasks(asked.tasks)

    shots = []
    for name in asked.tasks:
        with loaded(name, manager, asked) as tasks:
            shots.append(tasks["tasks"][name].get_config("num_fewshot"))

    assert shots == [2, 0]


def test_lm_evals_own_names_are_found_refused_or_unknown() -> None:
    write_task()
    found = index_tasks(("own", "arc_easy", "mmlu_stem"))

    assert "arc_easy" in found.task_index
    with pytest.MonkeyPatch.context() as monkeypatch:  # one index for the others: it takes seconds
        monkeypatch.setattr("stages.evaluate.harness.tasks.TaskManager", lambda **_: found)
        assert message_of("humaneval_plus").startswith(
            "harness.tasks: `humaneval_plus` runs generated code without a sandbox; remove it: the stages `generate` "
        )
        assert message_of("arc_easi") == (
            "harness.tasks: no task `arc_easi` in evaluation/tasks/ or in lm-eval "
            "(is it arc_easy, arc_es, arc_eu_easy?); `lm-eval ls tasks` lists lm-eval's"
        )
        assert "`mmlu_abstract_algebra` is asked for twice" in message_of("mmlu_abstract_algebra", "mmlu_stem")


def test_code_from_the_hub_is_never_run() -> None:
    write_task(metric_list=[{"metric": "f1", "hf_evaluate": True}])
    assert message_of("own").startswith(
        "harness.tasks: `own`: its metric `f1` is a script that `evaluate` would download from the Hub and run; copy "
    )
    write_task(metric_list=[{"metric": "accurracy"}])
    assert "its metric `accurracy` is a script" in message_of("own")


def test_a_group_with_a_task_that_runs_code_is_refused() -> None:
    write_task("runs_code", unsafe_code=True)
    Path("evaluation/tasks/group.yaml").write_text("group: mine\ntask: [{task: runs_code, num_fewshot: 1}]\n")

    assert message_of("mine").startswith("harness.tasks: `runs_code` runs generated code without a sandbox")


def test_a_group_that_holds_itself_is_named() -> None:
    write_task()
    Path("evaluation/tasks/group.yaml").write_text("group: mine\ntask: [own, {group: inner, task: [mine]}]\n")

    assert message_of("mine") == "harness.tasks: the group `mine` holds itself; correct its file in evaluation/tasks/"


def test_a_task_file_that_is_not_yaml_is_named_with_the_line() -> None:
    write_task("broken")
    Path("evaluation/tasks/broken.yaml").write_text("task: [broken\n")

    assert re.match(r"evaluation/tasks/broken\.yaml: not a task file: .* line 2, column 1", message_of("broken"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"doc_to_txt": "x"}, "TypeError: .*unexpected keyword argument 'doc_to_txt'"),
        ({"doc_to_text": "{{missing}}"}, "UndefinedError: 'missing' is undefined"),
        ({"output_type": "guess"}, "ValueError: Got invalid output_type 'guess'"),
        ({"dataset_kwargs": {"data_files": {"test": "gone.jsonl"}}}, "FileNotFoundError: .*gone.jsonl"),
    ],
)
def test_a_task_that_cannot_be_loaded_is_named_with_the_reason(keys: dict[str, object], message: str) -> None:
    write_task(**keys)

    assert re.match(
        rf"harness\.tasks: `own` cannot be loaded \({message}.*; correct its file or its data", message_of("own")
    )


def test_a_library_that_a_task_needs_is_named() -> None:
    write_task()
    file = Path("evaluation/tasks/own.yaml")
    file.write_text(file.read_text() + "process_docs: !function own.documents\n")
    Path("evaluation/tasks/own.py").write_text("import a_rare_library\n")

    assert message_of("own") == (
        "harness.tasks: `own` cannot be loaded (ModuleNotFoundError: No module named 'a_rare_library'); install the "
        "library that it needs, or remove the task"
    )


def test_data_that_is_not_on_this_machine_is_named_while_offline(tmp_path: Path) -> None:
    write_task("remote", dataset_path="someone/benchmark", dataset_kwargs=None)
    code = (
        "import socket; socket.socket.connect = socket.getaddrinfo = None  # who calls them ends in a traceback\n"
        "from stages.runtime.entry import run_stage; from tests.evaluate.harness.test_tasks import load\n"
        "run_stage(lambda: load('remote'))"
    )

    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == EXIT_USER_ERROR
    assert re.match(
        r"error: harness\.tasks: `remote` cannot be loaded \(ConnectionError: .*'someone/benchmark'.*\); its data is "
        r"not on this machine, and HF_HUB_OFFLINE or HF_DATASETS_OFFLINE is set: ",
        result.stderr,
    )


def test_a_hub_that_does_not_answer_may_answer_later() -> None:
    error = load_error("remote", ConnectionError("Couldn't reach 'someone/benchmark' on the Hub"))

    assert error.exit_code == EXIT_UNAVAILABLE
    assert str(error).endswith("; the Hub does not answer: try again")
