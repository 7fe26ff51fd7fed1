"""The result of a run does not depend on how many processes compute it."""

import math
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from stages.formats.reports import read_json
from stages.formats.revision.execution import TRAIN_EXECUTION
from stages.runtime.errors import EXIT_CONTINUE
from stages.runtime.supervision import seconds_since_saving
from stages.train.params import TrainParams
from tests.small_project import folder_bytes
from tests.train.small_run import (
    EPSILON,
    copy_of,
    params,
    require_equal_to_rounding,
    run_workers,
    stopped_at,
    write_project,
)

ADAMW = {"optimizer__name": "adamw", "optimizer__epsilon": EPSILON}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process, four micro-batches a step, with dropout and a part of the output matrix."""
    folder = write_project(
        tmp_path_factory.mktemp("alone"), **ADAMW, model__resid_pdrop=0.1, model__embd_pdrop=0.1, head_rows=40
    )
    run_workers(folder, 1, PARROTFLOW_MICRO_BATCH="2")
    return folder


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process with deterministic sums, dropout and a part of the output matrix, under a mixture."""
    phases = [{"after": 7, "weights": {"more": 1}}]
    changes = {
        "mixture": {"weights": {"sums": 0.75, "more": 0.25}, "phases": phases},
        "model__resid_pdrop": 0.1,
        "head_rows": 40,
    }
    folder = tmp_path_factory.mktemp("exact")
    write_project(folder, lambda number: ("sums", "more")[number % 2], deterministic_micro_batch_size=2, **changes)
    run_workers(folder, 1)
    return folder


def results(project: Path) -> dict[str, Any]:
    """What must not depend on how many processes computed it."""
    return {
        "model": folder_bytes(project / "model"),
        "curves": folder_bytes(project / "reports/curves"),
        "report": (project / "reports/train.json").read_bytes(),
        "checkpoints": read_json(project / TRAIN_EXECUTION)["checkpoints"],
    }


def test_exact_sums_give_the_same_bits_on_2_then_1_then_4_processes(exact: Path, tmp_path: Path) -> None:
    """Each continues the checkpoint of the one before; all checkpoints, the weights and the curves are the same."""
    changing = copy_of(exact, tmp_path / "changing")
    for processes, last in ((2, 3), (1, 6)):
        run_workers(changing, processes, stopped_at(last), EXIT_CONTINUE)
        assert seconds_since_saving(changing) < math.inf
    run_workers(changing, 4)

    sessions = read_json(changing / TRAIN_EXECUTION)["sessions"]
    executed = [(one["processes"], one["first_step"], one["last_step"]) for one in sessions]
    assert executed == [(2, 1, 3), (1, 4, 6), (4, 7, 12)]
    assert len(read_json(exact / TRAIN_EXECUTION)["checkpoints"]) == 4
    assert results(changing) == results(exact)


def held_out_losses(project: Path) -> list[float]:
    """The curve's."""
    lines = (project / "reports/curves/validation_loss.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return [float(line.split("\t")[1]) for line in lines]


@pytest.mark.parametrize(("processes", "replicas"), [(2, "1"), (4, "2")])
def test_sharded_training_equals_that_of_one_process_to_rounding(
    alone: Path, tmp_path: Path, processes: int, replicas: str
) -> None:
    sharded = copy_of(alone, tmp_path / "sharded")
    settings = {"ACCELERATE_USE_FSDP": "true", "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": replicas}
    run_workers(sharded, processes, PARROTFLOW_MICRO_BATCH="2", **settings)

    ours, theirs = (load_file(folder / "model/model.safetensors") for folder in (sharded, alone))
    require_equal_to_rounding(ours, theirs, TrainParams.model_validate(params(**ADAMW)))
    one, other = (held_out_losses(folder) for folder in (alone, sharded))
    assert one == pytest.approx(other, abs=1e-5)
    flops, same = (read_json(folder / "reports/train.json")["model_flops"] for folder in (alone, sharded))
    assert flops == same
    (session,) = read_json(sharded / TRAIN_EXECUTION)["sessions"]
    assert session["distributed"] == "fsdp2"
