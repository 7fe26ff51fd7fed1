"""What the hardware decides: precision, whether a run that continues is compiled, how many sequences a pass takes."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.runtime.errors import UserError
from stages.train.compute.gpu_memory import USABLE, balanced, fitting_on_all
from stages.train.compute.hardware import multiplies_bf16_fast, resolve_precision, should_compile
from stages.train.params import TrainParams
from tests.train.small_run import params


@pytest.fixture
def with_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    compiler = tmp_path / "g++"
    compiler.touch(mode=0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PARROTFLOW_COMPILE", "auto")
    return compiler


@pytest.mark.usefixtures("with_a_compiler")
def test_a_gpu_needs_a_c_compiler_and_pythons_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton builds a module of Python's with them; without, a run would die in its first step."""
    large = params(max_steps=10**9)

    def compiles() -> bool:
        return should_compile(TrainParams.model_validate(large | {"precision": "fp32"}), 1e12, torch.device("cuda"))

    headers = tmp_path / "include"
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(headers))
    monkeypatch.delenv("CC", raising=False)
    assert not compiles()
    (tmp_path / "gcc").touch(mode=0o700)
    assert not compiles()
    headers.mkdir()
    (headers / "Python.h").touch()
    assert compiles()


@dataclass
class Gpu:
    """A GPU whose memory is known: what a pass takes at once, for each sequence, and for the logits of a part."""

    memory: int
    constant: int
    per_sequence: int
    logits: int = 0
    """Of one sequence."""
    part: int = 1
    """Sequences whose logits are there at once."""
    tried: list[int] = field(default_factory=list)

    def takes(self, sequences: int) -> int:
        return self.constant + self.per_sequence * sequences + self.logits * min(sequences, self.part)

    def peak(self, sequences: int) -> int | None:
        self.tried.append(sequences)
        return self.takes(sequences) if self.takes(sequences) <= self.memory else None

    def room(self) -> int:
        return self.memory


@given(share=st.integers(1, 500), fitting=st.integers(1, 500))
def test_micro_batches_are_as_few_and_as_equal_as_can_be(share: int, fitting: int) -> None:
    size = balanced(share, fitting)
    assert size <= fitting
    assert -(-share // size) == -(-share // fitting)


@given(
    memory=st.integers(1, 10**6),
    constant=st.integers(0, 10**5),
    per_sequence=st.integers(1, 10**4),
    logits=st.integers(0, 10**4),
    part=st.integers(1, 12),
    share=st.integers(1, 256),
)
def test_what_is_chosen_fits_and_nothing_is_tried_that_does_not(
    memory: int, constant: int, per_sequence: int, logits: int, part: int, share: int
) -> None:
    gpu = Gpu(memory, constant, per_sequence, logits, part)
    fitting = fitting_on_all(share, part, gpu, least=lambda own: own)
    assert (fitting == 0) == (gpu.takes(1) > memory)
    assert gpu.takes(fitting) <= memory or not fitting
    assert all(gpu.takes(tried) <= memory for tried in gpu.tried[1:])


def test_beyond_a_part_of_the_loss_only_activations_count() -> None:
    gpu = Gpu(memory=100_000, constant=5_000, per_sequence=500, logits=2_000, part=6)
    assert fitting_on_all(256, 6, gpu, least=lambda own: own) == int((100_000 - 5_000 - 12_000) * USABLE / 500)
    assert gpu.tried == [1, 2, 6, 12]


def test_the_process_with_the_least_memory_decides_for_all() -> None:
    small, large = (Gpu(memory, constant=1_000, per_sequence=500) for memory in (5_000, 50_000))
    alone = fitting_on_all(64, 1, small, least=lambda own: own)
    said: list[int] = []
    fitting_on_all(64, 1, small, least=lambda own: said.append(own) or own)
    heard = iter(said)
    assert fitting_on_all(64, 1, large, least=lambda own: min(own, next(heard))) == alone
    assert small.tried[-2:] == large.tried == [1, 2]


@pytest.fixture
def amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU with AMX, and no limit on what oneDNN may use of it."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True, "avx512_bf16": True})
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.delenv("DNNL_MAX_CPU_ISA", raising=False)


@pytest.mark.usefixtures("amx")
def test_a_cpu_takes_bf16_if_it_has_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_precision("auto", "cpu") == "bf16"
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True, "amx_bf16": False})
    assert resolve_precision("auto", "cpu") == "fp32"


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
    assert resolve_precision("auto", "cuda") == resolved
    assert resolve_precision("fp32", "cuda") == "fp32"
    if has_bf16:
        assert resolve_precision("bf16", "cuda") == "bf16"
    else:
        with pytest.raises(UserError, match="Tesla V100 has no bf16 arithmetic; use fp32, or a GPU"):
            resolve_precision("bf16", "cuda")
