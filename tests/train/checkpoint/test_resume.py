"""What a run is, where it starts, and what it leaves: a run continues itself, or starts from another's checkpoint."""

import gc
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch.distributed.checkpoint._state_dict_stager import StateDictStager
from torch.testing._internal.distributed import fake_pg  # noqa: F401  # registers the backend `fake`

from stages.formats.model_folder import weights_sha256
from stages.formats.reports import read_json
from stages.formats.revision.execution import TRAIN_EXECUTION, Execution
from stages.runtime.errors import EXIT_CONTINUE, UserError
from stages.train import worker
from stages.train.checkpoint.checkpoints import Checkpoints
from stages.train.checkpoint.identity import check_start
from stages.train.checkpoint.manifest import IDENTITY, fault
from stages.train.checkpoint.resume import precision_of_run, resume, why_afresh
from stages.train.compute import hardware
from stages.train.compute.model.build import build_model
from stages.train.compute.model.loss import CausalLoss
from stages.train.compute.optim.build import Optimizers, build_optimizers
from stages.train.params import TrainParams
from tests.small_project import folder_bytes
from tests.train.models import vocabulary
from tests.train.small_run import (
    copy_of,
    monitoring,
    params,
    run_workers,
    stopped_at,
    swap_two_tokens,
    write_params,
    write_project,
)

CONSTANT: dict[str, Any] = {"schedule__name": "constant", "checkpoint_every_steps": 3, "evaluate_every_steps": 3}
SIX: dict[str, Any] = CONSTANT | {"max_steps": 6}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that could run."""
    return write_project(tmp_path_factory.mktemp("inputs"), **SIX)


@pytest.fixture(scope="module")
def trained(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps."""
    project = copy_of(inputs, tmp_path_factory.mktemp("trained") / "project")
    run_workers(project, 1)
    return project


@pytest.fixture
def project(trained: Path, tmp_path: Path) -> Path:
    """A copy of it, checkpoints included."""
    return Path(shutil.copytree(trained, tmp_path / "project"))


START = params(max_steps=9)
"""A run that could start from it."""


def newest(project: Path) -> Path:
    """The last checkpoint, as `train.start_from` names it."""
    return max((project / ".parrotflow/checkpoints").glob("*/step-*")).relative_to(project)


def checkpoints_of(run: Path) -> Checkpoints:
    """The checkpoints of a run's folder, in this process."""
    values = TrainParams.model_validate(params(schedule__name="constant", max_steps=6))
    return Checkpoints(run, Accelerator(cpu=True), values, monitoring())


def made(**changes: Any) -> tuple[CausalLoss, Optimizers]:
    """A model and its optimizers, for a checkpoint to be loaded into."""
    values = TrainParams.model_validate(params(schedule__name="constant", max_steps=6, **changes))
    model = CausalLoss(build_model(values, vocabulary()), values)
    return model, build_optimizers(model.model, values.optimizer, values.precision)


def train(project: Path, **changes: Any) -> str:
    """Train with these parameters; the sha256 of the weights."""
    write_params(project, **changes)
    run_workers(project, 1)
    return weights_sha256(project / "model")


def test_a_run_takes_weights_optimizer_state_and_step_from_the_checkpoint_of_another(
    inputs: Path, project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    start, longer = newest(project), CONSTANT | {"max_steps": 9}
    undisturbed = copy_of(inputs, tmp_path / "undisturbed")

    sha256 = train(project, **longer, start_from=str(start))

    assert f"continuing at step 6 of 9, from {start}" in capfd.readouterr().out
    assert sha256 == train(undisturbed, **longer)
    assert folder_bytes(project / "reports/curves") == folder_bytes(undisturbed / "reports/curves")
    record = Execution.find(project / TRAIN_EXECUTION)
    assert record is not None
    assert [(one.first_step, one.last_step) for one in record.sessions] == [(7, 9)]
    capfd.readouterr()
    speed = read_json(project / "reports/train_speed.json")
    assert train(project, **longer, start_from=str(start)) == sha256
    assert "continuing at step 9 of 9" in capfd.readouterr().out, "its own checkpoint comes first"
    assert read_json(project / "reports/train_speed.json") == speed, "no step was computed"


def test_the_settings_of_the_optimizer_are_those_of_the_run_that_starts(project: Path) -> None:
    path = project / newest(project)
    model, optimizers = made(optimizer__weight_decay=0.5)
    assert checkpoints_of(path.parent).load(path, model, optimizers).step == 6
    assert {group["weight_decay"] for one in optimizers for group in one.param_groups} == {0.0, 0.5}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model__n_layer": 3}, "a checkpoint of another model: model.transformer.h.2."),
        ({"optimizer__name": "adamw"}, "a checkpoint of other optimizers: "),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(project: Path, changes: dict[str, Any], said: str) -> None:
    path = project / newest(project)
    with pytest.raises(UserError, match=f"^{path}: {said}"):
        checkpoints_of(path.parent).load(path, *made(**changes))


def test_a_damaged_checkpoint_is_skipped_with_a_warning(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = project / newest(project)
    (damaged / "__0_0.distcp").write_bytes(b"damaged")
    assert checkpoints_of(damaged.parent).latest() == damaged.with_name("step-00000003")
    assert capsys.readouterr().out == f"warning: {damaged} is skipped: __0_0.distcp is missing or damaged\n"


def test_a_second_training_of_the_same_is_refused_while_the_first_one_runs(tmp_path: Path) -> None:
    first = checkpoints_of(tmp_path / "run")
    with pytest.raises(UserError, match="another training of the same parameters, data and code is running and writes"):
        checkpoints_of(first.folder)


def test_a_start_from_no_checkpoint_or_from_the_last_step_is_refused(trained: Path) -> None:
    last = trained / newest(trained)
    with pytest.raises(UserError, match=r"no such checkpoint; .* has: step-00000003, step-00000006"):
        check_start(last.with_name("step-00000004"), START)
    with pytest.raises(UserError, match=r"no step follows 6, train\.max_steps = 6; raise max_steps"):
        check_start(last, START | {"max_steps": 6})


@pytest.mark.parametrize("name", ["global_batch_size", "sequence_length"])
def test_a_start_from_a_checkpoint_with_other_tokens_in_a_step_is_refused(
    project: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps times the batch would not be the tokens that were trained on, nor its draws those of this order."""
    monkeypatch.chdir(project)
    with pytest.raises(UserError, match=rf"with train\.{name} = {START[name]}, not 4, .*keep {START[name]}, or"):
        check_start(newest(project), START | {name: 4})


def test_a_start_from_a_checkpoint_of_another_tokenizer_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    check_start(newest(project), START)

    swap_two_tokens(project / "data/tokenizer/tokenizer.json")

    with pytest.raises(UserError, match=r"step-00000006': its run had another tokenizer .*kind: existing"):
        check_start(newest(project), START)


def test_another_run_starts_afresh_and_says_what_differs_and_how_to_start_from_this_one(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    start = project / newest(project)
    run = read_json(start.with_name(IDENTITY))
    run["train"] |= {"max_steps": 7, "seed": 1, "gradient_checkpointing": None}
    checkpoints = checkpoints_of(start.parent.with_name("other"))

    assert resume(checkpoints, checkpoints.latest(), *made(), run).step == 0

    changes = "train.gradient_checkpointing: false -> null; train.max_steps: 6 -> 7; train.seed: 0 -> 1"
    differs = f"this is another run than {start.parent} ({changes})"
    remedy = f"to continue from its weights and optimizer state set train.start_from: {start}"
    assert capsys.readouterr().out == f"starting at step 0: {differs}; {remedy}\n"
    swap_two_tokens(project / "data/tokenizer/tokenizer.json")
    assert why_afresh(checkpoints.folder, run) == differs, "it would not start"
    start.with_name(IDENTITY).write_bytes(b'{"train": \xff')
    assert why_afresh(checkpoints.folder, run).endswith(f" ({start.with_name(IDENTITY)} is damaged)")


def test_milestones_are_saved_between_the_checkpoints_and_never_deleted(inputs: Path, tmp_path: Path) -> None:
    project = copy_of(inputs, tmp_path / "project")

    train(project, **SIX | {"checkpoint_every_steps": 5}, checkpoints_kept=1, milestone_every_steps=2)

    assert sorted(int(path.name[5:]) for path in project.glob(".parrotflow/checkpoints/*/step-*")) == [2, 4, 6]


def test_steps_that_are_exported_later_are_computed_again_and_are_those_of_the_run(
    inputs: Path, project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also: what is kept and shown is no part of what a run is."""
    other, before = copy_of(inputs, tmp_path / "other"), weights_sha256(project / "model")
    assert train(project, **SIX, export_steps=[4, 1, 2], checkpoints_kept=1, log_every_steps=2) == before
    assert "step-00000006 is skipped: step 1 (train.export_steps) was not kept" in capfd.readouterr().out
    train(other, **SIX | {"max_steps": 6, "checkpoint_every_steps": 6}, export_steps=[1, 2, 4], log_every_steps=2)
    assert sorted(path.name for path in (project / "model").glob("step-*")) == [f"step-0000000{n}" for n in (1, 2, 4)]
    assert folder_bytes(project / "model") == folder_bytes(other / "model")
    assert folder_bytes(project / "reports/curves") == folder_bytes(other / "reports/curves")
    assert len({weights_sha256(path) for path in (project / "model").glob("step-*")}) == 3


@pytest.mark.parametrize("content", ['{"sha256": {}}', "", '{"step": 6, "training_loss": 1.0}'])
def test_a_checkpoint_whose_manifest_lacks_something_has_a_fault(project: Path, content: str) -> None:
    checkpoint = project / newest(project)
    assert fault(checkpoint) == ""
    (checkpoint / "manifest.json").write_text(content)
    assert fault(checkpoint) == "it has no complete manifest.json"


def alone_in_a_group_of_gpus() -> None:
    """The worker where a launcher has started it alone on a GPU: its process group has no backend for CPUs."""
    torch.distributed.init_process_group("cuda:fake", store=torch.distributed.HashStore(), rank=0, world_size=1)
    main_without_a_collector()


def main_without_a_collector() -> None:
    """The worker where nothing looks for garbage; fails if the copy of a state that was saved is still there."""
    gc.disable()
    try:
        worker.main()
    finally:
        stagers = [one for one in gc.get_objects() if isinstance(one, StateDictStager)]
        assert not any(stager._cached_storage_mapping for stager in stagers)


def test_a_process_alone_in_a_group_of_gpus_saves_the_same_and_lets_go_of_its_copy(
    inputs: Path, trained: Path, tmp_path: Path
) -> None:
    grouped = copy_of(inputs, tmp_path / "grouped")
    run_workers(grouped, 1, alone_in_a_group_of_gpus)

    contents = [
        Execution.model_validate_json((project / TRAIN_EXECUTION).read_bytes()).checkpoints
        for project in (trained, grouped)
    ]
    assert contents[0]
    assert contents[0] == contents[1]
    assert weights_sha256(trained / "model") == weights_sha256(grouped / "model")


@pytest.mark.parametrize("changes", [{"evaluation_sequences": 3}, {}])
def test_a_finished_run_that_finds_other_held_out_tokens_measures_again_and_does_not_train(
    project: Path, changes: dict[str, Any]
) -> None:
    sha256, curve = weights_sha256(project / "model"), project / "reports/curves/validation_loss.tsv"
    speed = project / "reports/train_speed.json"
    before, timed = curve.read_text(encoding="utf-8").splitlines(), speed.read_bytes()
    if not changes:
        offsets = project / "data/tokens/validation"
        shutil.rmtree(offsets)
        shutil.copytree(project / "data/tokens/train", offsets)

    assert train(project, **SIX, **changes) == sha256

    after = curve.read_text(encoding="utf-8").splitlines()
    assert speed.read_bytes() == timed, "no step was computed"
    assert [line.split("\t")[0] for line in after] == ["step", "6"]
    assert after[-1] != before[-1]


def test_a_run_stays_in_the_precision_of_its_first_start(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A machine that multiplies bf16 fast began it, and two that do not go on."""
    project = copy_of(inputs, tmp_path / "project")
    write_params(project, **SIX, precision="auto")
    monkeypatch.setattr(hardware, "multiplies_bf16_fast", lambda device_type: True)
    run_workers(project, 1, stopped_at(3), EXIT_CONTINUE)
    monkeypatch.setattr(hardware, "multiplies_bf16_fast", lambda device_type: False)

    run_workers(project, 1)

    assert "note: this run began in bf16 and continues in it\ncontinuing at step 3 of 6" in capfd.readouterr().out
    record = Execution.find(project / TRAIN_EXECUTION)
    assert record is not None
    assert [session.precision for session in record.sessions] == ["bf16", "bf16"]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla V100")
    began = project / newest(project)
    with pytest.raises(UserError, match=r"step-00000006: its precision = bf16: Tesla V100 has no bf16 arithmetic"):
        precision_of_run(began, "auto", "cuda")
