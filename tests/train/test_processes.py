"""The result of a run does not depend on how many processes compute it."""

from pathlib import Path
from typing import Any

import pytest

from stages.formats.reports import read_json
from stages.formats.revision.execution import TRAIN_EXECUTION
from stages.runtime.entry import EXIT_CONTINUE
from tests.small_project import folder_bytes
from tests.train.small_run import copy_of, largest_difference, run_workers, stopped_at, write_project

ROUNDING = 2e-6
"""Absolute, on weights of about 0.02 to 1 after 12 steps in fp32: a few units in the last place."""

ROUNDING_OF_MUON = 2e-3
"""Muon orthogonalises in bf16: a last bit that differs in a gradient comes out as a last bit of bf16."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process, four micro-batches a step, with dropout."""
    folder = write_project(
        tmp_path_factory.mktemp("alone"),
        optimizer__name="adamw",
        model__resid_pdrop=0.1,
        model__embd_pdrop=0.1,
    )
    run_workers(folder, 1, PARROTFLOW_MICRO_BATCH="2")
    return folder


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process with deterministic sums and dropout."""
    folder = tmp_path_factory.mktemp("exact")
    write_project(folder, deterministic_micro_batch_size=2, model__resid_pdrop=0.1)
    run_workers(folder, 1)
    return folder


def test_exact_sums_give_the_same_bits_on_1_2_and_4_processes(exact: Path, tmp_path: Path) -> None:
    assert len(read_json(exact / TRAIN_EXECUTION)["checkpoints"]) == 4
    for processes in (2, 4):
        other = copy_of(exact, tmp_path / str(processes))
        run_workers(other, processes)
        assert results(other) == results(exact)


def results(project: Path) -> dict[str, Any]:
    """What must not depend on how many processes computed it."""
    return {
        "model": folder_bytes(project / "model"),
        "curves": folder_bytes(project / "reports/curves"),
        "report": (project / "reports/train.json").read_bytes(),
        "checkpoints": read_json(project / TRAIN_EXECUTION)["checkpoints"],
    }


@pytest.mark.parametrize("reference", ["exact", "alone"])
def test_a_run_continues_on_other_numbers_of_processes(
    reference: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """2, then 1, then 4: with deterministic sums the same bits, else the same data and so all but rounding."""
    whole: Path = request.getfixturevalue(reference)
    changing = copy_of(whole, tmp_path / "changing")
    micro_batch = {"PARROTFLOW_MICRO_BATCH": "2"}
    for processes, last in ((2, 3), (1, 6)):
        run_workers(changing, processes, stopped_at(last), EXIT_CONTINUE, **micro_batch)
    run_workers(changing, 4, **micro_batch)

    sessions = read_json(changing / TRAIN_EXECUTION)["sessions"]
    executed = [(one["processes"], one["first_step"], one["last_step"]) for one in sessions]
    assert executed == [(2, 1, 3), (1, 4, 6), (4, 7, 12)]
    assert largest_difference(whole, changing) < ROUNDING
    one, many = (read_json(folder / "reports/train.json") for folder in (whole, changing))
    assert one["validation_loss"] == pytest.approx(many["validation_loss"], abs=1e-5)
    assert one["model_flops"] == many["model_flops"]
    if reference == "exact":
        assert results(changing) == results(whole)


@pytest.mark.parametrize(("optimizer", "tolerance"), [("adamw", ROUNDING), ("muon", ROUNDING_OF_MUON)])
def test_sharded_training_equals_data_parallel_training_to_rounding(
    tmp_path: Path, optimizer: str, tolerance: float
) -> None:
    project = write_project(tmp_path / "ddp", optimizer__name=optimizer)
    sharded = copy_of(project, tmp_path / "fsdp")
    run_workers(project, 2)
    run_workers(sharded, 2, ACCELERATE_USE_FSDP="true", FSDP_VERSION="2")
    assert largest_difference(project, sharded) < tolerance
    one, other = (read_json(folder / "reports/train.json") for folder in (project, sharded))
    assert one["validation_loss"] == pytest.approx(other["validation_loss"], abs=1e-4)
    assert one["model_flops"] == other["model_flops"]
    record = read_json(sharded / TRAIN_EXECUTION)
    assert [one["distributed"] for one in record["sessions"]] == ["fsdp2"]


def test_a_sharded_run_with_replicas_is_the_same_run(tmp_path: Path) -> None:
    project = write_project(tmp_path / "ddp", optimizer__name="adamw", max_steps=4)
    hybrid = copy_of(project, tmp_path / "hsdp")
    run_workers(project, 4)
    run_workers(hybrid, 4, ACCELERATE_USE_FSDP="true", PARALLELISM_CONFIG_DP_REPLICATE_SIZE="2")
    assert largest_difference(project, hybrid) < ROUNDING
