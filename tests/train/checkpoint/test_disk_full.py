"""A real full disk: a tmpfs in a mount namespace of its own, which needs no rights on Linux."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stages.formats.model_folder import weights_sha256
from stages.runtime.errors import EXIT_DISK_FULL
from tests.train.small_run import copy_of, environment, run_workers, write_project

NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]

SCRIPT = """
mount -t tmpfs -o size={size} tmpfs {disk}
cp -r {project}/. {disk}
cd {disk}
{python} -m {module}
echo "left with $?"
ls .parrotflow/checkpoints/*
mount -o remount,size=100m tmpfs {disk}
{python} -m stages.train.worker
echo "left with $?"
cp -r model {project}
"""


KEPT = ["curves", "identity.json", "lock"]
"""What a run keeps besides its checkpoints."""


def namespaces_work() -> bool:
    command = [*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(command, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not namespaces_work(), reason="this system allows no tmpfs in a namespace of its own")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with room for everything; a checkpoint of it takes about 350 kB, its model 80 kB."""
    folder = write_project(tmp_path_factory.mktemp("reference"))
    run_workers(folder, 1)
    return folder


def train_on_a_disk_of(kilobytes: int, module: str, reference: Path, folder: Path) -> tuple[list[str], list[str]]:
    """What a run says on a disk of this size besides the lock, then what it says where there is room."""
    project, disk = copy_of(reference, folder / "project"), folder / "disk"
    disk.mkdir()
    size = f"{kilobytes + (project / 'requirements.lock').stat().st_size // 1024}k"
    paths = {"disk": disk, "project": project, "python": sys.executable}
    script = SCRIPT.format(size=size, module=module, **{name: shlex.quote(str(path)) for name, path in paths.items()})
    command = [*NAMESPACE, "sh", "-c", f"exec 2>&1\n{script}"]
    # Python 3.13 prints errors of files that are collected; earlier ones do so in this mode.
    variables = environment(ACCELERATE_USE_CPU="true", PYTHONDEVMODE="1", PYTHONWARNINGS="ignore")
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=False)
    full, _, after = done.stdout.partition("left with ")
    assert "Traceback" not in done.stdout
    assert after.endswith("left with 0\n"), done.stdout
    return full.splitlines(), after.splitlines()


def test_a_checkpoint_that_finds_no_room_is_left_out_and_the_one_before_it_is_kept(
    reference: Path, tmp_path: Path
) -> None:
    full, after = train_on_a_disk_of(616, "stages.train.worker", reference, tmp_path)
    warnings = [line for line in full if line.startswith("warning: a checkpoint could not be written (")]
    assert len(warnings) == 3
    assert all(line.endswith(" MB are free on its disk); the run continues") for line in warnings)
    assert after[: 2 + len(KEPT)] == ["0", *KEPT, "step-00000003"]
    assert any(line.startswith("continuing at step 3 of 12, from ") for line in after)
    assert weights_sha256(tmp_path / "project/model") == weights_sha256(reference / "model")


def test_a_model_that_finds_no_room_ends_the_run_with_one_message_and_the_checkpoints_are_kept(
    reference: Path, tmp_path: Path
) -> None:
    full, after = train_on_a_disk_of(920, "stages.train", reference, tmp_path)
    [error] = [line for line in full if line.startswith("error: ")]  # a last checkpoint may warn after it
    assert re.fullmatch(
        r"error: \.model\.\d+\.partial: No space left on device: free some space, and run the same command again", error
    )
    assert after[: 3 + len(KEPT)] == [str(EXIT_DISK_FULL), *KEPT, "step-00000003", "step-00000006"]
    assert any(line.startswith("continuing at step 6 of 12, from ") for line in after)
    assert weights_sha256(tmp_path / "project/model") == weights_sha256(reference / "model")
