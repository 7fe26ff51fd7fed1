"""Small task files, and a trained project with awkward held-out documents that the stage scores once for all tests."""

import json
import shutil
import socket
from pathlib import Path

import pytest
import yaml

from stages.evaluate.harness.__main__ import main
from stages.formats.documents import write_shard
from stages.tokenize.__main__ import main as tokenize
from tests.small_project import ROOT, document, function_text
from tests.trained_project import CONTEXT_LENGTH, write_sections

TEXTS = (
    "x\n",
    "<|endoftext|> is the name of a token here, and # ünï©ode 🦜 is text\n",
    function_text(1),
    function_text(2) + "\n\n" + function_text(3),
    "a = 1\n" * CONTEXT_LENGTH,
    " ",
)

ANSWERS = [{"question": f"{number} + 1 =", "answer": str(number + 1)} for number in range(6)]

EXACT = [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]


def write_task(name: str = "own", **keys: object) -> None:
    """A task file for `ANSWERS`, with some keys changed."""
    values = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": "evaluation/tasks/answers.jsonl"}},
        "test_split": "test",
        "output_type": "loglikelihood",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    Path("evaluation/tasks").mkdir(parents=True, exist_ok=True)
    Path("evaluation/tasks/answers.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in ANSWERS))
    Path(f"evaluation/tasks/{name}.yaml").write_text(yaml.safe_dump(values | keys))


def write_writing_task(name: str = "write", **options: object) -> None:
    """A task whose answers the model writes."""
    write_task(name, output_type="generate_until", metric_list=EXACT, generation_kwargs={"until": [], **options})


@pytest.fixture(scope="session")
def scored_template(trained_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scored") / "project"
    shutil.copytree(trained_template, folder)
    shutil.copytree(ROOT / "evaluation/tasks", folder / "evaluation/tasks")
    shutil.rmtree(folder / "data/clean/validation")
    (folder / "data/clean/validation").mkdir()
    documents = sorted((document(text) for text in TEXTS), key=lambda one: one.sort_key)
    write_shard(folder / "data/clean/validation/b0.parquet", documents[:3])
    write_shard(folder / "data/clean/validation/b1.parquet", documents[3:])
    write_sections(folder, harness__tasks=["heldout"])
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        tokenize()
        connections: list[object] = []
        monkeypatch.setattr(socket.socket, "connect", lambda _, address: connections.append(address))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *address, **_: connections.append(address) or [])
        main()
    assert connections == []  # libraries swallow the errors of what they report
    return folder


@pytest.fixture
def project(scored_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scored project of one's own, which is the current folder."""
    shutil.copytree(scored_template, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path
