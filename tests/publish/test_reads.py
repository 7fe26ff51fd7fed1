"""Large weights are read twice to publish: to be hashed, and to be copied or sent."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fake_hub import Hub
from tests.publish.publishing import record
from tests.publish.test_hub import environment
from tests.publish.to_hub import NAME
from tests.trained_project import write_sections

SAMPLE = 8192
"""Bytes that the Hub's client reads at once, of which it sends the first 512."""

COUNTED = """
import builtins, io

class Weights(io.FileIO):
    total = 0

    def readinto(self, buffer):
        count = super().readinto(buffer)
        Weights.total += count
        return count

    def readall(self):
        content = super().readall()
        Weights.total += len(content)
        return content

def counted(file, mode="r", *options, **named):
    if str(file).endswith("model/model.safetensors"):
        assert mode == "rb"
        return io.BufferedReader(Weights(file))
    return plain(file, mode, *options, **named)

plain = builtins.open
builtins.open = io.open = counted
from stages.publish.__main__ import main
main()
plain("read.txt", "w").write(str(Weights.total))
"""


@pytest.mark.parametrize("repository", [None, NAME], ids=["folder", "hub"])
def test_the_weights_are_read_twice(
    project: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, repository: str | None
) -> None:
    hashes = str(project.parent / "hashes")  # DVC's own: it does not read again what a stage has just made
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", hashes)
    record()
    write_sections(project, publish__repository=repository)

    own = environment(hub, DVC_SITE_CACHE_DIR=hashes)
    result = subprocess.run([sys.executable, "-c", COUNTED], env=own, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr
    twice = 2 * Path("model/model.safetensors").stat().st_size
    assert twice <= int(Path("read.txt").read_text()) <= twice + SAMPLE
