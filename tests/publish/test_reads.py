"""Large weights are read twice to publish: to be hashed, and to be copied or sent."""

import json
from pathlib import Path

import pytest

from tests.fake_hub import Hub
from tests.forked import PYTHON, run_forked
from tests.publish.publishing import record
from tests.publish.test_hub import environment
from tests.publish.to_hub import NAME
from tests.trained_project import write_sections

COUNTED = """
import sys
opened = 0
def count(event, arguments):
    global opened
    opened += event == "open" and str(arguments[0]).endswith("model/model.safetensors")
sys.addaudithook(count)
from stages.publish.__main__ import main
main()
open("opened.json", "w").write(str(opened))
"""


@pytest.mark.parametrize(
    ("repository", "most"),
    [(None, 2), (NAME, 3)],  # the Hub's client also opens a file for its first 512 bytes
    ids=["folder", "hub"],
)
def test_the_weights_are_read_twice(
    project: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, repository: str | None, most: int
) -> None:
    hashes = str(project.parent / "hashes")  # DVC's own: it does not read again what a stage has just made
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", hashes)
    record()
    write_sections(project, publish__repository=repository)

    result = run_forked(PYTHON, ["-c", COUNTED], project, environment(hub, DVC_SITE_CACHE_DIR=hashes))

    assert result.returncode == 0, result.stderr
    assert json.loads((project / "opened.json").read_text()) == most
