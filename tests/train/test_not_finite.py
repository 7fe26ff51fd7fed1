"""A loss or weights that are no numbers any more end the run before they spoil a checkpoint.

A weight decay of a million makes the matrices grow three thousandfold in each step: a mistake that really explodes.
"""

import re
from pathlib import Path

import pytest

from stages.formats.tokens import TokenStore
from stages.runtime.entry import EXIT_USER_ERROR
from stages.train.checkpoint.manifest import read_manifest
from stages.train.commands.trace import DataOrder, origins
from stages.train.data.order import open_order
from tests.train.small_run import fork, params, run, run_workers, write_project

EXPLODES = {"optimizer__weight_decay": 1e6, "evaluate_every_steps": 100, "batch_doublings": [1]}


def test_two_processes_name_documents_of_the_batch_once_and_the_checkpoint_before_is_kept(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", **EXPLODES, checkpoint_every_steps=2)
    said = run(project, expected_code=EXIT_USER_ERROR, begin=fork, PARROTFLOW_LAUNCH="cpu_2").splitlines()

    assert [line.split()[0] for line in said] == ["model:", "time:", "memory:", "launching", "step", "error:"]
    step = int(said[-1].partition("at step ")[2].partition(";")[0])
    assert said[-1].startswith("error: train: ")
    assert said[-1].endswith("Lower train.optimizer.muon_learning_rate or raise train.schedule.warmup_steps")
    named = said[-1].partition("its batch holds ")[2].partition(". The last checkpoint is kept. ")[0]
    store = TokenStore(project / "data/tokens/train")
    trained_on = {
        f"{origin.source}:{origin.path}"
        for origin in origins(store, open_order(store, DataOrder.model_validate(params(**EXPLODES))), step)
    }
    documents = named.removesuffix(" and others").split(", ")
    assert len(documents) == min(8, len(trained_on)), "the step, and so its batch, depends on the processor"
    assert named.endswith(" and others") == (len(trained_on) > 8)
    assert set(documents) <= trained_on

    newest = max((project / ".parrotflow/checkpoints").glob("*/step-*"))
    assert read_manifest(newest).step < step


def test_weights_that_the_step_before_a_checkpoint_spoiled_are_not_saved(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The loss of that step is still finite: it was measured before the weights changed."""
    values = EXPLODES | {"optimizer__weight_decay": 3e12, "checkpoint_every_steps": 1, "log_every_steps": 100}
    project = write_project(tmp_path / "project", **values)
    with pytest.raises(AssertionError):
        run_workers(project, 1)
    said = capfd.readouterr().err.splitlines()
    assert re.search(r"UserError: train: the norm of the weights is (inf|nan) at step 2; its batch holds s:", said[-1])
    assert [path.name for path in (project / ".parrotflow/checkpoints").glob("*/step-*")] == ["step-00000001"]
