"""The recorded execution, on a machine that is not the recorded one."""

from pathlib import Path
from typing import Any

import pytest

from flows.reproduce.environment import Machine
from flows.reproduce.execution import limits_for, missing, other_builds, settings_for
from flows.reproduce.verdict import differing_facts
from stages.formats.revision.execution import Session

AVX2 = ["avx2"]
AVX512 = ["avx2", "avx512_bf16", "avx512_f", "avx512_vnni"]
AMX = sorted([*AVX512, "avx512_fp16", "amx_bf16"])


def session(**changed: Any) -> Session:
    return Session.model_validate(
        {
            "first_step": 1,
            "last_step": 9,
            "device": "a processor",
            "device_type": "cpu",
            "cpu_flags": AVX512,
            "cpu_capability": "AVX512",
            "isa_limits": {},
            "processes": 1,
            "machines": 1,
            "threads_per_process": 2,
            "precision": "fp32",
            "compiled": False,
            "micro_batch_size": 4,
            "gradient_accumulation_steps": 1,
            "distributed": "none",
            "environment": {"OMP_WAIT_POLICY": "passive"},
            "launch": "num_processes: 1\n",
            "versions": {"python": "3.11.7"},
        }
        | changed
    )


def machine(flags: list[str], accelerators: list[str] | None = None) -> Machine:
    capability = "AVX512" if "avx512_f" in flags else "AVX2"
    return Machine(
        python="3.11.7",
        versions={},
        flags=flags,
        system="Linux x86_64",
        accelerators=accelerators or [],
        cpu_capability=capability,
        cores=4,
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


def test_what_this_machine_lacks_is_said(tmp_path: Path) -> None:
    assert list(missing(session(cpu_flags=AMX), machine(AVX512))) == [
        "this processor lacks amx_bf16, avx512_fp16, which a processor has: expect other last bits"
    ]
    assert list(missing(session(threads_per_process=64), machine(AVX512))) == [
        "64 threads a process on 4 cores: as recorded, but slower"
    ]
    on_gpus = session(device="H100", device_type="cuda", processes=8)
    assert list(missing(on_gpus, machine(AVX512))) == [
        "the recorded run had H100; this machine has no GPU: expect other last bits"
    ]
    values, notes = settings_for(on_gpus, machine(AVX512, ["H100"]), tmp_path)
    assert "PARROTFLOW_LAUNCH" not in values
    assert "8 processes on 1 machines (H100); this machine cannot launch that" in notes[0]


def test_facts_that_differ_are_named_with_both_values() -> None:
    here = session(
        cpu_flags=AVX2, cpu_capability="AVX2", threads_per_process=4, environment={}, versions={"python": "3.12.0"}
    )

    assert list(differing_facts(session(), here)) == [
        ("cpu_flags", "cpu_flags: here without avx512_bf16, avx512_f, avx512_vnni"),
        ("cpu_capability", "cpu_capability: recorded AVX512, here AVX2"),
        ("threads_per_process", "threads_per_process: recorded 2, here 4"),
        ("versions", "python: recorded 3.11.7, here 3.12.0"),
        ("environment", "OMP_WAIT_POLICY: recorded passive, here not set"),
    ]


def test_another_build_of_the_recorded_version_is_named() -> None:
    recorded = session(
        versions={"torch": "2.13.0+cpu", "numpy": "2.4.6", "safetensors": "0.7.0"},
        wheels={"numpy": "a" * 64, "safetensors": "c" * 64},
    )
    here = machine(AVX512).model_copy(
        update={
            "versions": {"torch": "2.13.0", "numpy": "2.4.6", "safetensors": "0.7.0"},
            "builds": {"torch": "2.13.0+cu130"},
            "wheels": {"numpy": "b" * 64, "safetensors": "c" * 64},
        }
    )

    assert list(other_builds(recorded, here)) == [
        "torch is 2.13.0+cpu in the record and 2.13.0+cu130 here: another build, expect other last bits",
        f"numpy 2.4.6 is not the recorded wheel: its files were {'a' * 16} and are {'b' * 16} here",
    ]
    assert list(other_builds(recorded, here.model_copy(update={"builds": {"torch": "2.13.0+cpu"}, "wheels": {}}))) == []
