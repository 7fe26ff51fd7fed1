"""What a run depends on, and one that is continued after a change of its code."""

import errno
import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint._state_dict_stager import StateDictStager
from torch.testing._internal.distributed import fake_pg  # noqa: F401  # registers the backend `fake`
from transformers import PreTrainedModel

from stages.formats.model_folder import weights_sha256
from stages.formats.revision.execution import TRAIN_EXECUTION, Execution, differing_facts
from stages.formats.tokens import Manifest
from stages.runtime.entry import UserError
from stages.train import worker
from stages.train.checkpoint import checkpoints, resume
from stages.train.checkpoint.checkpoints import Checkpoints
from stages.train.checkpoint.manifest import IDENTITY, History
from stages.train.checkpoint.resume import CONTINUE, why_afresh
from stages.train.model.build import build_model
from stages.train.params import TrainParams
from stages.train.segment import plan
from tests.train.small_run import copy_of, run_workers, write_params, write_project

CONSTANT: dict[str, Any] = {"schedule__name": "constant", "export_steps": [2], "checkpoint_every_steps": 3}


def main_of_other_code() -> None:
    """The worker after a change of its code that changes no number."""
    resume.computing_sha256 = lambda module: "other"
    try:
        worker.main()
    except UserError as error:
        print(error)
        raise SystemExit(error.exit_code) from None


def main_of_code_with_another_layer() -> None:
    """The worker after a change of its code that gives the model one layer more."""

    def build(params: TrainParams, manifest: Manifest) -> PreTrainedModel:
        return build_model(params.model_copy(update={"model": params.model | {"n_layer": 3}}), manifest)

    worker.build_model = build
    main_of_other_code()


def alone_in_a_group_of_gpus() -> None:
    """The worker where a launcher has started it alone on a GPU: its process group has no backend for CPUs."""
    torch.distributed.init_process_group("cuda:fake", store=torch.distributed.HashStore(), rank=0, world_size=1)
    worker.main()


def main_without_a_collector() -> None:
    """The worker where nothing looks for garbage; fails where the copy of a state that was saved is still there."""
    gc.disable()
    try:
        worker.main()
    finally:
        stagers = [one for one in gc.get_objects() if isinstance(one, StateDictStager)]
        assert not any(stager._cached_storage_mapping for stager in stagers)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that could run."""
    return write_project(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def project(inputs: Path, tmp_path: Path) -> Path:
    """A run of six steps."""
    project = copy_of(inputs, tmp_path / "project")
    write_params(project, **CONSTANT, max_steps=6)
    run_workers(project, 1)
    return project


def run_so_far(project: Path) -> str:
    (folder,) = (project / ".parrotflow/checkpoints").iterdir()
    return folder.name


def test_it_continues_with_the_weights_of_an_undisturbed_run_and_record_and_segment_say_so(
    inputs: Path, project: Path, tmp_path: Path
) -> None:
    earlier, undisturbed = run_so_far(project), copy_of(inputs, tmp_path / "undisturbed")
    write_params(project, **CONSTANT, max_steps=9)
    run_workers(project, 1, main_of_other_code, **{CONTINUE: earlier})
    write_params(undisturbed, **CONSTANT, max_steps=9)
    run_workers(undisturbed, 1)
    assert weights_sha256(project / "model") == weights_sha256(undisturbed / "model")
    assert weights_sha256(project / "model/step-00000002") == weights_sha256(undisturbed / "model/step-00000002")

    record = Execution.find(project / TRAIN_EXECUTION)
    assert record is not None
    assert [(one.first_step, one.continued_from) for one in record.sessions] == [(1, None), (7, earlier)]
    assert [str(fact) for fact in differing_facts(*record.sessions)] == [
        f"continued_from: recorded none, here {earlier}"
    ]
    checkpoints = project / ".parrotflow/checkpoints" / earlier
    with pytest.raises(UserError, match="--from 3: the steps up to 6 were computed by other code"):
        plan(project / TRAIN_EXECUTION, checkpoints, 3, 9)
    assert plan(project / TRAIN_EXECUTION, checkpoints, 6, 9).first == 6


def test_of_a_machine_that_lost_its_disk_it_continues_from_the_mirror_alone(
    inputs: Path, project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mirror = {"PARROTFLOW_MIRROR": (tmp_path / "mirror").as_uri()}
    write_params(project, **CONSTANT, max_steps=7)
    run_workers(project, 1, **mirror)
    earlier, other = run_so_far(project), copy_of(inputs, tmp_path / "other")
    write_params(project, **CONSTANT, max_steps=9)
    write_params(other, **CONSTANT, max_steps=9)
    capfd.readouterr()
    run_workers(other, 1, main_of_other_code, expected_code=2, **mirror, **{CONTINUE: "0" * 16})
    run_workers(other, 1, main_of_other_code, **mirror, **{CONTINUE: earlier})
    run_workers(project, 1)

    said = capfd.readouterr().out
    assert f"no such training in .parrotflow/checkpoints and {mirror['PARROTFLOW_MIRROR']}; there are {earlier}" in said
    assert "continuing at step 7 of 9" in said
    assert weights_sha256(other / "model") == weights_sha256(project / "model")
    run_workers(other, 1, main_of_other_code, **{CONTINUE: earlier})  # once it is here the mirror is not needed


def test_a_finished_run_that_other_code_takes_over_is_on_record_as_the_work_of_the_code_before(project: Path) -> None:
    earlier = run_so_far(project)
    run_workers(project, 1, main_of_other_code, **{CONTINUE: earlier})
    record = Execution.find(project / TRAIN_EXECUTION)
    assert record is not None
    assert [(one.first_step, one.has_steps, one.continued_from) for one in record.sessions] == [
        (1, True, None),
        (7, False, earlier),
    ]
    with pytest.raises(UserError, match="--from 3: the steps up to 6 were computed by other code"):
        plan(project / TRAIN_EXECUTION, project / ".parrotflow/checkpoints" / earlier, 3, 6)


def test_unasked_it_starts_afresh_and_says_how_to_continue(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    earlier = run_so_far(project)
    capfd.readouterr()
    run_workers(project, 1, main_of_other_code)
    said = capfd.readouterr().out
    assert f"where the change is none to the weights, {CONTINUE}={earlier} continues that run" in said
    assert "continuing at step" not in said


def test_where_the_weights_of_the_new_code_have_other_shapes_it_is_refused_with_one_message(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    earlier = run_so_far(project)
    capfd.readouterr()
    run_workers(project, 1, main_of_code_with_another_layer, expected_code=2, **{CONTINUE: earlier})
    said = capfd.readouterr().out
    path = f".parrotflow/checkpoints/{earlier}/step-00000006"
    assert f"{path}: of another model than this code builds (model.transformer.h.2." in said
    assert f"is absent there and [48] here); unset {CONTINUE}\n" in said


def test_where_more_than_the_code_differs_or_there_is_no_such_run_it_is_refused(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    earlier = run_so_far(project)
    write_params(project, **CONSTANT, max_steps=6, optimizer__weight_decay=0.2)
    run_workers(project, 1, main_of_other_code, expected_code=2, **{CONTINUE: earlier})
    said = capfd.readouterr().out
    assert f"{CONTINUE}={earlier}: more than the code differs from that training (" in said
    assert "train.optimizer.weight_decay: 0.1 -> 0.2" in said
    run_workers(project, 1, main_of_other_code, expected_code=2, **{CONTINUE: "0" * 16})
    assert f"{CONTINUE}={'0' * 16}: no such training in .parrotflow/checkpoints; there are " in capfd.readouterr().out


ROOT = Path(__file__).parents[3]


def test_a_kill_leaves_no_half_of_a_model_that_is_taken_from_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own/exports/step-00000002-of-12"
    for folder, content in ((tmp_path / "earlier", "new"), (own, "old")):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_text(content)

    def cut_short(_: Path, folder: Path, **options: Any) -> None:
        (folder / "model.safetensors").write_text("n")
        raise KeyboardInterrupt

    alone = SimpleNamespace(is_main_process=True, num_processes=1)
    params = SimpleNamespace(exported_steps=[2])
    own_run = SimpleNamespace(accelerator=alone, params=params, export_path=lambda step: own)
    earlier = SimpleNamespace(exported=lambda step: tmp_path / "earlier")
    with monkeypatch.context() as patch:
        patch.setattr(resume.shutil, "copytree", cut_short)
        with pytest.raises(KeyboardInterrupt):
            resume.take_exports(earlier, own_run, 2)
    assert (own / "model.safetensors").read_text() == "old"
    resume.take_exports(earlier, own_run, 2)
    assert (own / "model.safetensors").read_text() == "new"


def test_a_checkpoint_that_could_not_be_written_is_in_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(checkpoints, "content_sha256", lambda folder: "hash")
    monkeypatch.setattr(checkpoints, "write_manifest", full)
    run = SimpleNamespace(
        folder=tmp_path,
        accelerator=SimpleNamespace(is_main_process=True),
        curves=SimpleNamespace(copy_to=lambda folder: None),
        history=History(),
        mirror=SimpleNamespace(url=""),
    )
    with pytest.raises(OSError, match="no space left"):
        Checkpoints._finish(run, SimpleNamespace(result=lambda: None), tmp_path, tmp_path, SimpleNamespace(step=3))
    assert run.history.contents == {}


def test_a_damaged_note_about_another_run_stops_no_run(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / IDENTITY).write_bytes(b'{"train": \xff')

    assert why_afresh(tmp_path / "own", {}, {}) == [f"{tmp_path / 'other' / IDENTITY} is damaged"]


def test_a_process_alone_in_a_group_of_gpus_saves_what_one_without_a_group_saves(inputs: Path, tmp_path: Path) -> None:
    alone, grouped = copy_of(inputs, tmp_path / "alone"), copy_of(inputs, tmp_path / "grouped")
    run_workers(alone, 1)
    run_workers(grouped, 1, alone_in_a_group_of_gpus)

    contents = [
        Execution.model_validate_json((project / TRAIN_EXECUTION).read_bytes()).checkpoints
        for project in (alone, grouped)
    ]
    assert contents[0]
    assert contents[0] == contents[1]
    assert weights_sha256(alone / "model") == weights_sha256(grouped / "model")


def test_the_copy_of_a_state_is_let_go_once_it_is_saved(inputs: Path, tmp_path: Path) -> None:
    run_workers(copy_of(inputs, tmp_path / "project"), 1, main_without_a_collector)
