"""The result of a run does not depend on how many processes compute it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_saver import save

from stages.formats.model_folder import weights_sha256
from stages.formats.reports import read_json
from stages.formats.revision.execution import TRAIN_EXECUTION
from stages.train.checkpoint.manifest import content_sha256
from tests.train.small_run import copy_of, largest_difference, run_workers, write_params, write_project

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


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_and_accumulation_share_a_global_batch_with_the_same_result_to_rounding(
    alone: Path, tmp_path: Path, processes: int
) -> None:
    project = copy_of(alone, tmp_path / "many")
    run_workers(project, processes, PARROTFLOW_MICRO_BATCH="2")
    assert largest_difference(alone, project) < ROUNDING
    one, many = (read_json(folder / "reports/train.json") for folder in (alone, project))
    assert one["validation_loss"] == pytest.approx(many["validation_loss"], abs=1e-5)
    assert one["model_flops"] == many["model_flops"]


def test_exact_sums_give_the_same_bits_on_1_2_and_4_processes(tmp_path: Path) -> None:
    project = write_project(tmp_path / "1", deterministic_micro_batch_size=2, model__resid_pdrop=0.1)
    run_workers(project, 1)
    checkpoints = read_json(project / TRAIN_EXECUTION)["checkpoints"]
    assert len(checkpoints) == 4
    for processes in (2, 4):
        other = copy_of(project, tmp_path / str(processes))
        run_workers(other, processes)
        assert weights_sha256(other / "model") == weights_sha256(project / "model")
        assert read_json(other / TRAIN_EXECUTION)["checkpoints"] == checkpoints
        assert (other / "reports/train.json").read_bytes() == (project / "reports/train.json").read_bytes()
        for curve in sorted((project / "reports/curves").iterdir()):
            assert (other / "reports/curves" / curve.name).read_bytes() == curve.read_bytes()


def test_where_the_schedule_allows_it_a_longer_run_goes_on_from_a_shorter_one_with_the_same_bits(
    tmp_path: Path,
) -> None:
    project = write_project(tmp_path / "long", schedule__name="constant")
    short = copy_of(project, tmp_path / "short")
    run_workers(project, 1)
    write_params(short, schedule__name="constant", max_steps=5)
    run_workers(short, 1)
    write_params(short, schedule__name="constant")
    run_workers(short, 1)
    assert read_json(short / "reports/train.json") == read_json(project / "reports/train.json")
    assert weights_sha256(short / "model") == weights_sha256(project / "model")
    for curve in sorted((project / "reports/curves").iterdir()):
        assert (short / "reports/curves" / curve.name).read_bytes() == curve.read_bytes()


def test_a_run_that_is_extended_after_a_shorter_one_has_whole_curves(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", schedule__name="constant", max_steps=16)
    other = copy_of(project, tmp_path / "other")
    run_workers(project, 1)
    for steps in (12, 6, 16):
        write_params(other, schedule__name="constant", max_steps=steps)
        run_workers(other, 1)
    for curve in sorted((project / "reports/curves").iterdir()):
        assert (other / "reports/curves" / curve.name).read_bytes() == curve.read_bytes()


@pytest.mark.parametrize("micro_batch_size", [2, None], ids=["deterministic sums", "sums of the backend"])
def test_a_run_goes_on_with_other_numbers_of_processes(tmp_path: Path, micro_batch_size: int | None) -> None:
    """2, then 1, then 4: with deterministic sums the same bits, else the same data and so all but rounding."""
    elastic: dict[str, Any] = {
        "schedule__name": "constant",
        "optimizer__name": "muon" if micro_batch_size else "adamw",
        "deterministic_micro_batch_size": micro_batch_size,
        "model__resid_pdrop": 0.1 if micro_batch_size else 0.0,
    }
    project = write_project(tmp_path / "alone", **elastic, max_steps=8)
    changing = copy_of(project, tmp_path / "changing")
    run_workers(project, 1)
    for processes, steps in ((2, 3), (1, 5), (4, 8)):
        write_params(changing, **elastic, max_steps=steps)
        run_workers(changing, processes)

    whole, record = (read_json(folder / TRAIN_EXECUTION) for folder in (project, changing))
    sessions = [(one["processes"], one["first_step"], one["last_step"]) for one in record["sessions"]]
    assert sessions == [(2, 1, 3), (1, 4, 5), (4, 6, 8)]
    assert largest_difference(project, changing) < ROUNDING
    if micro_batch_size:
        assert weights_sha256(changing / "model") == weights_sha256(project / "model")
        shared = record["checkpoints"].keys() & whole["checkpoints"].keys()
        assert shared == {"3", "6", "8"}
        assert {step: record["checkpoints"][step] for step in shared} == whole["checkpoints"]
        for curve in sorted((project / "reports/curves").iterdir()):
            assert (changing / "reports/curves" / curve.name).read_bytes() == curve.read_bytes()


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
    shards = next(sharded.glob(".parrotflow/checkpoints/*/step-00000012"))
    assert content_of_the_same_saved_whole(shards, tmp_path / "whole") == record["checkpoints"]["12"]


def content_of_the_same_saved_whole(checkpoint: Path, folder: Path) -> str:
    """The content of a checkpoint after one process has loaded all of it and saved it again."""
    whole = folder.with_suffix(".pt")
    dcp_to_torch_save(checkpoint, whole)
    save(torch.load(whole, weights_only=False), checkpoint_id=folder, no_dist=True)
    assert len(list(checkpoint.glob("*.distcp"))) == 2
    assert len(list(folder.glob("*.distcp"))) == 1
    return content_sha256(folder)


def test_a_sharded_run_with_replicas_is_the_same_run(tmp_path: Path) -> None:
    project = write_project(tmp_path / "ddp", optimizer__name="adamw", max_steps=4)
    hybrid = copy_of(project, tmp_path / "hsdp")
    run_workers(project, 4)
    run_workers(hybrid, 4, ACCELERATE_USE_FSDP="true", PARALLELISM_CONFIG_DP_REPLICATE_SIZE="2")
    assert largest_difference(project, hybrid) < ROUNDING
