"""What a finished run leaves: how it was executed, traces of chosen steps, a tokenizer that begins as training did."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer

from stages.formats.model_folder import weights_sha256
from stages.formats.reports import METRICS_FOLDER, read_json, write_json
from stages.formats.revision.execution import TRAIN_EXECUTION, TRAIN_REPORT, Execution, computing_variables, limits
from stages.runtime.errors import UserError
from stages.train.monitoring.results import write_tokenizer
from stages.train.monitoring.throughput import PROFILE, profiled_steps
from tests.small_project import folder_bytes
from tests.train.small_run import copy_of, params, run_workers, write_project

SETTINGS = {"MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "AVX2", "NCCL_SOCKET_IFNAME": "eth7", "NCCL_ALGO": "Ring"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 6 steps with deterministic sums, which takes fp32 as it may not use AMX."""
    changes = {"precision": "auto", "deterministic_micro_batch_size": 2}
    folder = write_project(tmp_path_factory.mktemp("finished"), max_steps=6, **changes)
    run_workers(folder, 1, **SETTINGS)
    return folder


def record(folder: Path) -> Execution:
    found = Execution.find(folder / TRAIN_EXECUTION)
    assert found is not None
    return found


def test_the_record_names_what_can_change_a_bit_and_belongs_to_the_weights(finished: Path) -> None:
    found = record(finished)
    assert found.weights_sha256 == weights_sha256(finished / "model")
    report = read_json(finished / TRAIN_REPORT)
    assert report["weights_sha256"] == found.weights_sha256
    compared = read_json(finished / METRICS_FOLDER / "train.json")
    assert compared == {name: report[name] for name in ("epochs", "training_loss")}
    assert [found.fingerprint] == [path.name for path in (finished / ".parrotflow/checkpoints").iterdir()]
    (session,) = found.sessions
    assert (session.first_step, session.last_step) == (1, 6)
    assert (session.processes, session.threads_per_process, session.machines) == (1, 1, 1)
    assert (session.micro_batch_size, session.gradient_accumulation_steps) == (2, 4)
    assert (session.precision, session.compiled, session.distributed) == ("fp32", False, "none")
    assert session.cpu_capability == torch.backends.cpu.get_cpu_capability()
    assert read_json(finished / "model/training.json")["precision"] == "fp32"
    assert session.isa_limits == {"MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    assert session.environment["NCCL_ALGO"] == "Ring"
    assert session.versions["torch"] == torch.__version__
    assert "eth7" not in (finished / TRAIN_EXECUTION).read_text(encoding="utf-8")


def test_what_a_device_can_do_is_reported_only_if_it_is_known(finished: Path) -> None:
    speed, report = (read_json(finished / f"reports/{name}.json") for name in ("train_speed", "train"))
    assert speed["model_flops_utilization"] is None
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


def test_a_run_that_only_exports_again_on_other_hardware_keeps_what_is_said_of_how_it_was_computed(
    finished: Path, tmp_path: Path
) -> None:
    project = Path(shutil.copytree(finished, tmp_path / "project"))
    for made in ("model", "reports"):
        shutil.rmtree(project / made)
    run_workers(project, 2)
    assert (project / TRAIN_EXECUTION).read_bytes() == (finished / TRAIN_EXECUTION).read_bytes()
    assert not (project / "reports/train_speed.json").exists(), "no step was timed"


def test_the_named_steps_are_in_a_trace_of_each_process_and_the_results_are_those_of_any_run(
    finished: Path, tmp_path: Path
) -> None:
    project = copy_of(finished, tmp_path / "profiled")
    run_workers(project, 2, **SETTINGS, **{PROFILE: "2-3"})

    assert weights_sha256(project / "model") == weights_sha256(finished / "model")
    assert folder_bytes(project / "reports/curves") == folder_bytes(finished / "reports/curves")
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
    for wrong in ("0-3", "12-10", "ten", "10-"):
        monkeypatch.setenv(PROFILE, wrong)
        with pytest.raises(UserError, match=f"{PROFILE}={wrong}: expected steps, from 1, such as 10 or 10-12"):
            profiled_steps()


VOCABULARY = {"<s>": 0, "</s>": 1, "bako": 2, "miter": 3}
CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}


def write_existing(folder: Path, config: dict[str, object], begins: bool) -> None:
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", config)


@pytest.mark.parametrize(
    ("config", "begins"),
    [
        (CONFIG, False),
        (CONFIG, True),
        (CONFIG | {"add_bos_token": True, "add_eos_token": True}, True),
        (CONFIG | {"eos_token": {"content": "</s>", "lstrip": False}, "pad_token": "<s>"}, True),
    ],
)
def test_a_text_begins_with_the_end_of_sequence_id_alone(
    tmp_path: Path, config: dict[str, object], begins: bool
) -> None:
    write_existing(tmp_path / "existing", config, begins)
    (tmp_path / "model").mkdir()
    before = (tmp_path / "existing/tokenizer.json").read_bytes()

    write_tokenizer(tmp_path / "model", 1, tmp_path / "existing")

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer("bako miter").input_ids == [1, 2, 3]
    assert tokenizer("bako miter", add_special_tokens=False).input_ids == [2, 3]
    assert tokenizer(["bako", "bako miter"], padding=True).input_ids == [[1, 1, 2], [1, 2, 3]]
    assert (tmp_path / "existing/tokenizer.json").read_bytes() == before
    assert read_json(tmp_path / "model/tokenizer_config.json")["bos_token"] == "</s>"
