"""`train.precision: auto` is decided by what the hardware is."""

import json
from pathlib import Path

import pytest
import torch

from stages.formats.reports import read_json
from stages.runtime.entry import UserError
from stages.train.checkpoint.resume import fingerprint, identity
from stages.train.hardware import describe_precision, multiplies_bf16_fast, resolve_precision
from stages.train.params import TrainParams
from tests.train.small_run import params, run, write_project


def section(precision: str) -> TrainParams:
    return TrainParams.model_validate(params(precision=precision))


@pytest.fixture
def amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU with AMX, and no limit on what oneDNN may use of it."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True, "avx512_bf16": True})
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.delenv("DNNL_MAX_CPU_ISA", raising=False)


@pytest.mark.usefixtures("amx")
def test_a_cpu_with_amx_takes_bf16() -> None:
    assert resolve_precision(section("auto"), "cpu").precision == "bf16"


@pytest.mark.parametrize("capabilities", [{"avx512_bf16": True, "amx_bf16": False}, {"avx2": True}, {}])
def test_any_other_cpu_takes_fp32(monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool]) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert resolve_precision(section("auto"), "cpu").precision == "fp32"


@pytest.mark.usefixtures("amx")
@pytest.mark.parametrize("variable", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
@pytest.mark.parametrize(
    ("limit", "fast"),
    [("AVX2", False), ("avx512_core_bf16", False), ("AVX10_1_512_AMX", True), ("AVX512_CORE_AMX", True), ("ALL", True)],
)
def test_a_limit_on_onednns_instructions_counts(
    monkeypatch: pytest.MonkeyPatch, variable: str, limit: str, fast: bool
) -> None:
    monkeypatch.setenv(variable, limit)
    assert multiplies_bf16_fast("cpu") is fast


@pytest.mark.parametrize(("has_bf16", "resolved"), [(True, "bf16"), (False, "fp32")])
def test_a_gpu_takes_bf16_where_it_has_the_arithmetic(
    monkeypatch: pytest.MonkeyPatch, has_bf16: bool, resolved: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bf16)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla V100")
    assert resolve_precision(section("auto"), "cuda").precision == resolved
    assert resolve_precision(section("fp32"), "cuda").precision == "fp32"
    if has_bf16:
        assert resolve_precision(section("bf16"), "cuda").precision == "bf16"
    else:
        with pytest.raises(UserError, match="Tesla V100 has no bf16 arithmetic; use auto or fp32"):
            resolve_precision(section("bf16"), "cuda")


def test_a_slow_choice_stays_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    assert describe_precision(section("auto"), "cpu") == "fp32"
    assert describe_precision(section("bf16"), "cpu") == (
        "bf16 (slow: fp32 is faster on this CPU; train.precision: auto takes it)"
    )


def test_auto_and_the_value_that_it_stands_for_are_one_run(tmp_path: Path) -> None:
    """Below AMX, whatever this machine has: the fingerprint, the report and the model carry the resolved value."""
    project = write_project(tmp_path / "project", precision="auto", max_steps=2)
    said = run(project, ONEDNN_MAX_CPU_ISA="AVX2")
    assert "launching 1 process by launch/cpu.yaml, in fp32\n" in said
    assert read_json(project / "reports/train_speed.json")["precision"] == "fp32"
    assert read_json(project / "model/training.json")["precision"] == "fp32"
    (recorded,) = (project / ".parrotflow/checkpoints").glob("*/identity.json")
    assert json.loads(recorded.read_text())["train"]["precision"] == "fp32"
    auto, fixed = (resolve_precision(section(name), "cpu") for name in ("auto", multiplied("cpu")))
    assert fingerprint(identity(auto, [])) == fingerprint(identity(fixed, []))


def multiplied(device: str) -> str:
    return "bf16" if multiplies_bf16_fast(device) else "fp32"
