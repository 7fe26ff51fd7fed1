"""How a training was executed, and side outputs which change no result: traces of chosen steps, the speed by step."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
import torch

from stages.formats.model_folder import weights_sha256
from stages.formats.reports import read_json
from stages.formats.revision.execution import OBSERVED_TWICE, TRAIN_EXECUTION, Execution, computing_variables, limits
from stages.runtime.entry import UserError
from stages.train.monitoring.profile import PROFILE, profiled_steps
from tests.train.small_run import copy_of, params, run_workers, write_project


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 6 steps."""
    folder = write_project(tmp_path_factory.mktemp("finished"), max_steps=6)
    run_workers(folder, 1, PARROTFLOW_MICRO_BATCH="3", MKL_CBWR="COMPATIBLE", NCCL_SOCKET_IFNAME="eth7")
    return folder


@pytest.fixture
def project(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(finished, tmp_path / "project"))


def record(folder: Path) -> Execution:
    found = Execution.find(folder / TRAIN_EXECUTION)
    assert found is not None
    return found


def test_the_record_names_what_can_change_a_bit_and_belongs_to_the_weights(finished: Path) -> None:
    found = record(finished)
    assert found.weights_sha256 == weights_sha256(finished / "model")
    assert [found.fingerprint] == [path.name for path in (finished / ".parrotflow/checkpoints").iterdir()]
    (session,) = found.sessions
    assert (session.first_step, session.last_step) == (1, 6)
    assert (session.processes, session.threads_per_process, session.machines) == (1, 1, 1)
    assert (session.micro_batch_size, session.gradient_accumulation_steps) == (3, 3)
    assert (session.precision, session.compiled, session.distributed) == ("fp32", False, "none")
    assert session.cpu_capability == torch.backends.cpu.get_cpu_capability()
    assert session.isa_limits == {"MKL_CBWR": "COMPATIBLE"}
    assert session.environment["PARROTFLOW_MICRO_BATCH"] == "3"
    assert session.versions["torch"] == torch.__version__
    assert "eth7" not in (finished / TRAIN_EXECUTION).read_text(encoding="utf-8")


def test_what_a_device_can_do_is_reported_only_if_it_is_known(finished: Path) -> None:
    speed, report = (read_json(finished / f"reports/{name}.json") for name in ("train_speed", "train"))
    assert speed["model_flops_utilisation"] is None
    assert speed["peak_flops"] is None
    assert report["tokens"] == 6 * 8 * params()["sequence_length"]
    assert report["model_flops"] == speed["flops_per_token"] * report["tokens"] > 0
    assert speed["weights_sha256"] == weights_sha256(finished / "model")


def test_secrets_paths_and_names_stay_out_of_the_record() -> None:
    variables = {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ONEDNN_DEFAULT_FPMATH_MODE": "BF16",
        "OMP_PLACES": "{0:4}:/home/someone",
        "NCCL_HOSTID": "node-7",
        "NCCL_ALGO": "Ring",
        "TORCH_HOME": "/home/someone/.cache",
        "TORCHINDUCTOR_CACHE_DIR": "cache",
        "PARROTFLOW_MIRROR": "s3://key:secret@bucket",
        "HF_TOKEN": "hf_secret",
    }
    assert limits(variables) == {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    assert computing_variables(variables) == {"NCCL_ALGO": "Ring", "ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}


def test_a_run_that_only_exports_again_writes_the_same_record(project: Path) -> None:
    before = (project / TRAIN_EXECUTION).read_bytes()
    for made in ("model", "reports"):
        shutil.rmtree(project / made)
    run_workers(project, 1)  # with other micro-batches, in which it computes no step
    assert (project / TRAIN_EXECUTION).read_bytes() == before


def test_a_run_that_only_exports_again_on_other_hardware_keeps_what_is_said_of_how_it_was_computed(
    project: Path,
) -> None:
    report = project / "reports/train_speed.json"
    before = read_json(report)
    run_workers(project, 2)
    assert read_json(report) == before

    report.unlink()
    run_workers(project, 2)
    (session,) = record(project).sessions
    made_again = read_json(report)
    assert {name: made_again[name] for name in OBSERVED_TWICE} == session.model_dump(include=set(OBSERVED_TWICE))


def test_the_named_steps_are_in_a_trace_of_each_process_and_the_results_are_those_of_any_run(tmp_path: Path) -> None:
    plain = write_project(tmp_path / "plain", max_steps=4)
    project = copy_of(plain, tmp_path / "profiled")
    run_workers(plain, 2)
    run_workers(project, 2, **{PROFILE: "2-3"})

    assert weights_sha256(project / "model") == weights_sha256(plain / "model")
    for curve in sorted((plain / "reports/curves").iterdir()):
        assert (project / "reports/curves" / curve.name).read_bytes() == curve.read_bytes()
    traces = sorted(project.glob(".parrotflow/checkpoints/*/profile/*"))
    assert [path.name for path in traces] == ["steps-2-3-rank0.json.gz", "steps-2-3-rank1.json.gz"]
    for path in traces:
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        names = {event.get("name", "") for event in events}
        assert {"step 2", "step 3", "aten::addmm"} <= names
        assert not {"step 1", "step 4"} & names


@pytest.mark.parametrize(
    ("asked", "steps"), [("", range(0)), ("10-12", range(9, 12)), ("10", range(9, 10)), ("1-1", range(1))]
)
def test_steps_are_named_as_in_the_curves(monkeypatch: pytest.MonkeyPatch, asked: str, steps: range) -> None:
    monkeypatch.setenv(PROFILE, asked)
    assert profiled_steps() == steps


@pytest.mark.parametrize("asked", ["0-3", "12-10", "ten", "10-"])
def test_what_names_no_steps_is_refused(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv(PROFILE, asked)
    with pytest.raises(UserError, match=f"{PROFILE}={asked}: expected steps, from 1, such as 10 or 10-12"):
        profiled_steps()
