"""Whether a run that continues is compiled."""

from pathlib import Path

import pytest
import torch

from stages.formats.revision.execution import Session
from stages.train.distributed.hardware import stays_compiled

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def with_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    compiler = tmp_path / "g++"
    compiler.touch(mode=0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PARROTFLOW_COMPILE", "auto")
    return compiler


def sessions(*compiled: bool, device_type: str = "cpu") -> list[Session]:
    return [Session.model_construct(compiled=one, device_type=device_type) for one in compiled]


@pytest.mark.parametrize("afresh", [True, False])
def test_left_to_itself_a_run_that_continues_stays_as_it_was(afresh: bool) -> None:
    assert stays_compiled(afresh, sessions(True), CPU)
    assert not stays_compiled(afresh, sessions(False), CPU)
    assert not stays_compiled(afresh, sessions(True, False), CPU)
    assert stays_compiled(afresh, [], CPU) is afresh
    assert stays_compiled(afresh, sessions(not afresh, device_type="cuda"), CPU) is afresh


@pytest.mark.parametrize("choice", ["on", "off"])
def test_a_choice_of_the_user_holds_for_a_run_that_continues_too(monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    monkeypatch.setenv("PARROTFLOW_COMPILE", choice)
    assert stays_compiled(choice == "on", sessions(choice == "off"), CPU) is (choice == "on")


def test_where_there_is_no_compiler_a_compiled_run_continues_eager(with_a_compiler: Path) -> None:
    with_a_compiler.unlink()
    assert not stays_compiled(False, sessions(True), CPU)


def test_a_gpu_needs_a_c_compiler_and_pythons_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton builds a module of Python's with them; without, a run would die in its first step."""
    gpu, on_gpu = torch.device("cuda"), sessions(True, device_type="cuda")
    headers = tmp_path / "include"
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(headers))
    monkeypatch.delenv("CC", raising=False)
    assert not stays_compiled(False, on_gpu, gpu)
    (tmp_path / "gcc").touch(mode=0o700)
    assert not stays_compiled(False, on_gpu, gpu)
    headers.mkdir()
    (headers / "Python.h").touch()
    assert stays_compiled(False, on_gpu, gpu)
