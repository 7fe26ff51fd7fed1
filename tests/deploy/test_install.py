"""What pip is configured with reaches uv, and only files whose hashes are listed are installed."""

import hashlib
import os
import runpy
import subprocess
import sysconfig
import venv
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from stages.runtime.stage_code import normalised, pinned
from tests.small_project import ROOT

INSTALL = runpy.run_path(str(ROOT / "deploy/install.py"))

LISTED = """\
:env:.find-links='/wheels'
global.cert='/etc/ca.crt'
global.extra-index-url='file:///one/simple https://user:it%27s@two/simple'
global.find-links='/other'
global.index-url="https://mirror/simple"
install.constraint='/etc/constraints.txt'
download.no-index='true'
"""


def test_uv_is_given_the_indexes_and_constraints_of_pip() -> None:
    settings = INSTALL["configured"](LISTED)

    assert settings["cert"] == "/etc/ca.crt"
    assert INSTALL["uv_options"](settings) == [
        "--default-index=https://mirror/simple",
        "--index=file:///one/simple",
        "--index=https://user:it%27s@two/simple",
        "--find-links=/wheels",
        "--constraints=/etc/constraints.txt",
        "--index-strategy",
        "unsafe-best-match",
    ]


def test_without_a_configuration_uv_uses_its_own_defaults() -> None:
    assert INSTALL["uv_options"](INSTALL["configured"]("")) == ["--index-strategy", "unsafe-best-match"]


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with one wheel, a build that its version names, as torch's for processors."""
    info = "toy-1.0+cpu.dist-info"
    with zipfile.ZipFile(tmp_path / "toy-1.0+cpu-py3-none-any.whl", "w") as wheel:
        wheel.writestr("toy.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: toy\nVersion: 1.0+cpu\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"toy.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return tmp_path


def install(wheels: Path, how: str, hashes: list[str]) -> subprocess.CompletedProcess[str]:
    """Install the wheel into an environment that has pip and uv, with a constraint in pip's configuration."""
    venv.create(wheels / "venv", symlinks=True)
    (packages,) = (wheels / "venv/lib").glob("python*/site-packages")
    (packages / "here.pth").write_text(sysconfig.get_path("purelib"))
    (wheels / "toy.lock").write_text("toy==1.0" + "".join(f" --hash=sha256:{one}" for one in hashes))
    (wheels / "constraints.txt").write_text("toy<2\n")
    places = f"no-index = true\nfind-links = {wheels}\nconstraint = {wheels}/constraints.txt\n"
    (wheels / "pip.conf").write_text(f"[global]\n{places}")
    program = f"import sys, install, pathlib; sys.exit(install.{how}(pathlib.Path('toy.lock')))"
    variables = {"PYTHONPATH": str(ROOT / "deploy"), "PIP_CONFIG_FILE": str(wheels / "pip.conf"), "PATH": os.defpath}
    command = [str(wheels / "venv/bin/python"), "-c", program]
    variables["UV_CACHE_DIR"] = str(wheels / "cache")
    return subprocess.run(command, cwd=wheels, env=variables, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("how", ["by_uv", "by_pip"])
def test_a_file_is_installed_if_the_lock_lists_its_hash_and_refused_by_name_if_not(wheels: Path, how: str) -> None:
    """The lock names the release, as torch==2.13.0, and the hashes of all its builds."""
    (wheel,) = wheels.glob("*.whl")
    listed, other = hashlib.sha256(wheel.read_bytes()).hexdigest(), "0" * 64

    refused = install(wheels, how, [other])
    assert refused.returncode != 0
    said = refused.stdout + refused.stderr
    assert "toy==1.0" in said
    assert other in said
    assert not list(wheels.glob("venv/lib/*/site-packages/toy.py"))

    installed = install(wheels, how, [other, listed])
    assert (installed.returncode, list(wheels.glob("venv/lib/*/site-packages/toy.py")) != []) == (0, True), installed


@pytest.mark.parametrize("python", ["3.11.0", "3.11.9", "3.12.0", "3.13.0", "3.14.0"])
@pytest.mark.parametrize(("platform", "machine"), [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")])
def test_all_that_a_locked_library_requires_is_locked_for_every_python(
    python: str, platform: str, machine: str
) -> None:
    """A lock is installed without its libraries' own requirements, and `pip check` then ends the set-up."""
    locks = [pinned(ROOT / name) for name in ("requirements.lock", "requirements-dev.lock", "requirements-gpu.lock")]
    locked = {name for lock in locks for name in lock}
    here = {"python_version": python.rpartition(".")[0], "python_full_version": python, "extra": ""}
    here |= {"sys_platform": platform, "platform_system": platform.title(), "platform_machine": machine}
    required = {
        normalised(required.name)
        for distribution in distributions()
        if normalised(distribution.metadata["Name"]) in locked
        for required in map(Requirement, distribution.requires or [])
        if required.marker is None or required.marker.evaluate(here)
    }

    assert required - locked == set()
