"""From a step back to its documents."""

from pathlib import Path

import numpy as np
import pytest

from stages.formats.tokens import TokenStore
from stages.runtime.entry import UserError
from stages.runtime.section import read_section
from stages.train.commands.trace import check, main, origins
from stages.train.data.batches import read_rows, rows_of_step
from stages.train.data.packing import build_packing
from stages.train.params import TrainParams
from tests.train.small_run import write_project


@pytest.fixture(params=["best_fit", "concatenate"])
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = write_project(tmp_path / "project", packing=request.param)
    monkeypatch.chdir(folder)
    return folder


def test_the_documents_stretches_are_the_tokens_of_the_batch(project: Path) -> None:
    store, params = TokenStore(Path("data/tokens/train")), read_section("train", TrainParams)
    index = build_packing(store, params.sequence_length, params.packing)
    by_path = {info["path"]: number for number, info in enumerate(store.document_infos())}

    for step in (1, 5, params.max_steps):
        rows = rows_of_step(params.seed, step - 1, params.global_batch_size, index.rows)
        batch = read_rows(store, index, rows, params.sequence_length)
        told: list[list[int]] = [[] for _ in rows]
        for origin in origins(store, params, step):
            told[origin.row] += store.document(by_path[origin.path])[origin.first : origin.stop].tolist()
        for row, tokens in enumerate(told):
            targets = batch.targets[row]
            np.testing.assert_array_equal(targets[targets >= 0], tokens)


def test_it_prints_a_line_for_each_stretch(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["where", "--step", "2", "--row", "1"])

    main()

    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.startswith("row   1  s:f") and "tokens " in line for line in lines)


def test_a_step_or_row_that_is_not_there_is_refused(project: Path) -> None:
    params = read_section("train", TrainParams)
    with pytest.raises(UserError, match="--step 13: the run has the steps 1 to 12"):
        check(13, None, params)
    with pytest.raises(UserError, match="--row 8: a step has the rows 0 to 7"):
        check(1, 8, params)
