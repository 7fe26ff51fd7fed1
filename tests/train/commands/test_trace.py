"""From a step back to its documents."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from stages.formats.tokens import TokenStore
from stages.runtime.errors import UserError
from stages.train.commands.trace import trace, trained_order
from stages.train.compute.data.order import open_order
from stages.train.compute.data.rows import read_rows
from stages.train.origins import origins
from tests.train.small_run import run_workers, write_params, write_project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = write_project(tmp_path / "project", global_batch_size=16)
    monkeypatch.chdir(folder)
    return folder


def test_the_documents_spans_are_the_tokens_of_the_batch(project: Path) -> None:
    store, params = TokenStore(Path("data/tokens/train")), trained_order()
    order = open_order(store, params)
    by_path = {info["path"]: number for number, info in enumerate(store.document_infos())}

    for step in (1, 5, params.max_steps):
        rows = order.rows_of_step(step - 1)
        batch = read_rows(store, order.index, rows, params.sequence_length)
        told: list[list[int]] = [[] for _ in rows]
        for origin in origins(store, order, step):
            told[origin.row] += store.document(by_path[origin.path])[origin.first : origin.stop].tolist()
        for row, tokens in enumerate(told):
            targets = batch.targets[row]
            np.testing.assert_array_equal(targets[targets >= 0], tokens)


def test_it_prints_a_line_for_each_span_in_which_no_name_commands_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(write_project(tmp_path / "project", source_of=lambda number: "s\x1b[31m\n"))

    trace(step=2)

    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(re.fullmatch(r"row +\d  s\\x1b\[31m\\n:f\d+\.py  tokens \d+\.\.\d+", line) for line in lines)


@pytest.mark.usefixtures("project")
def test_a_step_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match="--step 13: the run has the steps 1 to 12"):
        trace(step=13)


def test_steps_before_the_checkpoint_that_a_run_started_from_are_refused(project: Path) -> None:
    run_workers(project, 1)
    recorded = Path("model/training.json")
    values = json.loads(recorded.read_text()) | {"start_from": ".parrotflow/checkpoints/0123/step-00000004"}
    recorded.write_text(json.dumps(values))
    trace(step=5)
    with pytest.raises(UserError, match=r"--step 4: steps 1 to 4 belong to the run in train\.start_from"):
        trace(step=4)


def test_it_answers_for_the_run_that_made_the_model_and_refuses_other_tokens(project: Path) -> None:
    store = TokenStore(Path("data/tokens/train"))
    run_workers(project, 1)
    before = list(origins(store, open_order(store, trained_order()), 5))
    write_params(project, seed=5, global_batch_size=4)
    assert list(origins(store, open_order(store, trained_order()), 5)) == before
    assert len({origin.row for origin in before}) == 16

    manifest = project / "data/tokens/train/manifest.json"
    manifest.write_text(manifest.read_text() + "\n")
    with pytest.raises(UserError, match="data/tokens/train: not the tokens that model/ was trained on"):
        trained_order()
