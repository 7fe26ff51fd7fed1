"""The recorded execution, on a machine that is not the recorded one."""

from pathlib import Path
from typing import Any

import pytest

from flows.reproduce.environment import Machine, limits_for, settings_for
from stages.formats.revision.execution import Session
from tests.formats.revision.records import SESSION

AVX2 = ["avx2"]
AVX512 = ["avx2", "avx512_bf16", "avx512_f", "avx512_vnni"]
AMX = sorted([*AVX512, "avx512_fp16", "amx_bf16"])


def session(**changed: Any) -> Session:
    here = {"cpu_flags": AVX512, "cpu_capability": "AVX512", "environment": {"OMP_WAIT_POLICY": "passive"}}
    return SESSION.model_copy(update=here | {"launch": "num_processes: 1\n"} | changed)


def machine(flags: list[str], accelerators: list[str] | None = None) -> Machine:
    capability = "AVX512" if "avx512_f" in flags else "AVX2"
    return Machine(
        python="3.11.7",
        versions={},
        flags=flags,
        accelerators=accelerators or [],
        cpu_capability=capability,
    )


def test_the_recorded_settings_become_variables(tmp_path: Path) -> None:
    values, notes = settings_for(session(), machine(AVX512), tmp_path)

    assert values == {
        "OMP_WAIT_POLICY": "passive",
        "OMP_NUM_THREADS": "2",
        "PARROTFLOW_COMPILE": "off",
        "PARROTFLOW_LAUNCH": str(tmp_path / "launch.yaml"),
    }
    assert (tmp_path / "launch.yaml").read_text() == "num_processes: 1\n"
    assert notes == []


@pytest.mark.parametrize(
    ("recorded", "capability", "here", "limits"),
    [
        (AVX512, "AVX512", AVX512, {}),
        (AMX, "AVX512", AVX512, {}),
        (AVX512, "AVX512", AMX, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}),
        (
            AVX2,
            "AVX2",
            AVX512,
            {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
        ),
    ],
)
def test_a_processor_with_more_instructions_is_limited_to_the_recorded_ones(
    recorded: list[str], capability: str, here: list[str], limits: dict[str, str]
) -> None:
    assert limits_for(session(cpu_flags=recorded, cpu_capability=capability), machine(here)) == limits


def test_gpus_that_are_not_here_are_a_note_and_not_launched(tmp_path: Path) -> None:
    on_gpus = session(device="H100", device_type="cuda", processes=8)

    values, notes = settings_for(on_gpus, machine(AVX512, ["H100"]), tmp_path)

    assert "PARROTFLOW_LAUNCH" not in values
    assert "8 processes on 1 machines (H100); this machine cannot launch that" in notes[0]


def test_a_record_sets_no_variable_but_those_that_compute(tmp_path: Path) -> None:
    recorded = {"OMP_WAIT_POLICY": "passive", "LD_PRELOAD": "evil.so", "TORCH_EXTENSIONS_DIR": "x", "MKL_CBWR": "/a b"}

    values, _ = settings_for(session(environment=recorded, isa_limits={"PATH": "evil"}), machine(AVX512), tmp_path)

    assert values.keys() == {"OMP_WAIT_POLICY", "OMP_NUM_THREADS", "PARROTFLOW_COMPILE", "PARROTFLOW_LAUNCH"}
