"""A real full disk: a tmpfs of one MiB in a mount namespace of its own, which needs no rights on Linux."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.small_project import ROOT, write_corpus, write_project

NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]

SCRIPT = """
mount -t tmpfs -o size=1m tmpfs {disk}
cp -r {project}/. {disk}
cd {disk}
{python} -m stages.collect
sha256sum data/documents/*
cp {project}/../big.py corpus/
{python} -m stages.collect
echo "left with $?"
sha256sum data/documents/*
ls -A data
"""


def namespaces_work() -> bool:
    command = [*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(command, check=False).returncode == 0


def random_text(size: int) -> str:
    draw = random.Random(0)
    return "".join(chr(draw.randrange(0x4E00, 0x9FFF)) for _ in range(size))


@pytest.mark.skipif(not namespaces_work(), reason="this system allows no tmpfs in a namespace of its own")
def test_a_disk_that_fills_up_ends_with_a_clear_error_and_the_previous_result_intact(tmp_path: Path) -> None:
    project, disk = tmp_path / "project", tmp_path / "disk"
    project.mkdir()
    disk.mkdir()
    write_corpus(project, 5)
    write_project(project, collect__shard_bytes=100_000)
    (tmp_path / "big.py").write_text(random_text(300_000), encoding="utf-8")

    run = subprocess.run(
        [*NAMESPACE, "sh", "-c", SCRIPT.format(disk=disk, project=project, python=sys.executable)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    before, after = run.stdout.split("left with 28")
    assert run.stderr.startswith("error: no space left on the disk")
    assert "previous results are intact: free some space and run the same command again" in run.stderr
    hashes = [line for line in before.splitlines() if "data/documents" in line]
    assert hashes
    assert after.split("\n")[1:-1] == [*hashes, "documents", "left_out.csv"]
