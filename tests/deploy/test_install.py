"""What pip is configured with reaches uv, and only files whose hashes are listed are installed."""

import hashlib
import os
import runpy
import shutil
import subprocess
import sysconfig
import venv
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from stages.runtime.stage_code import normalized, pinned
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
    write_wheel(tmp_path, "toy", "1.0+cpu")
    return tmp_path


def write_wheel(folder: Path, name: str, version: str, requires: str = "") -> str:
    """Write a wheel; returns its hash as locks list it."""
    info, file = f"{name}-{version}.dist-info", folder / f"{name}-{version}-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{info}/METADATA", metadata + (f"Requires-Dist: {requires}\n" if requires else ""))
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return f"--hash=sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"


def environment(folder: Path, places: str) -> Path:
    """Make an environment that has this one's pip and uv, and pip's configuration; returns its Python."""
    venv.create(folder / "venv", symlinks=True)
    (packages,) = (folder / "venv/lib").glob("python*/site-packages")
    (packages / "here.pth").write_text(sysconfig.get_path("purelib"))
    (folder / "pip.conf").write_text(f"[global]\n{places}")
    return folder / "venv/bin/python"


def install(wheels: Path, how: str, hashes: list[str]) -> subprocess.CompletedProcess[str]:
    """Install the wheel into an environment that has pip and uv, with a constraint in pip's configuration."""
    (wheels / "toy.lock").write_text("toy==1.0" + "".join(f" --hash=sha256:{one}" for one in hashes))
    (wheels / "constraints.txt").write_text("toy<2\n")
    places = f"no-index = true\nfind-links = {wheels}\nconstraint = {wheels}/constraints.txt\n"
    python = environment(wheels, places)
    program = f"import sys, install, pathlib; sys.exit(install.{how}(pathlib.Path('toy.lock')))"
    variables = {"PYTHONPATH": str(ROOT / "deploy"), "PIP_CONFIG_FILE": str(wheels / "pip.conf"), "PATH": os.defpath}
    command = [str(python), "-c", program]
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


def test_make_lock_lists_the_files_of_a_changed_version_and_what_the_build_for_gpus_requires(tmp_path: Path) -> None:
    """A build for processors, in a folder, needs no libraries; the index's build of the same version does."""
    index, folder = tmp_path / "index", tmp_path / "folder"
    hashes = []
    for place, version, requires in (
        (folder, "1.0+cpu", ""),
        (index / "torch", "1.0", "cuda-library; python_version<'4'"),
    ):
        place.mkdir(parents=True)
        hashes.append(write_wheel(place, "torch", version, requires))
    (index / "cuda-library").mkdir()
    library = write_wheel(index / "cuda-library", "cuda_library", "2.0")
    for file in index.glob("*/*.whl"):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        (file.parent / "index.html").write_text(f'<a href="{file.name}#sha256={digest}">{file.name}</a>')
    (tmp_path / "deploy").mkdir()
    for name in ("install.py", "lock.py", "uv.txt"):
        shutil.copy(ROOT / "deploy" / name, tmp_path / "deploy")
    (tmp_path / "deploy/uv.txt").write_text("")
    (tmp_path / "requirements.lock").write_text(f"torch==1.0 --hash=sha256:{'0' * 64}\n")
    (tmp_path / "requirements-dev.lock").write_text("")
    (tmp_path / "requirements-gpu.lock").write_text("")
    python = environment(tmp_path, f"index-url = file://{index}\nfind-links = {folder}\n")

    variables = {
        "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"),
        "PATH": os.defpath,
        "UV_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [python, "deploy/lock.py"], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "requirements.lock").read_text() == " ".join(["torch==1.0", *sorted(hashes)]) + "\n"
    wanted = f"cuda-library==2.0 ; python_full_version < '4' {library}\n"
    assert (tmp_path / "requirements-gpu.lock").read_text() == wanted


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
        normalized(required.name)
        for distribution in distributions()
        if normalized(distribution.metadata["Name"]) in locked
        for required in map(Requirement, distribution.requires or [])
        if required.marker is None or required.marker.evaluate(here)
    }

    assert required - locked == set()
