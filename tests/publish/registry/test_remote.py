"""`parrotflow published --hub`: the real client in processes of its own, against a Hub on the loopback interface."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from benchmarks.runs.hub_server import Hub
from tests.publish.test_hub import NAME, READER, environment, published
from tests.trained_project import write_model, write_sections

SESSION = """
import io, json, sys, traceback
from contextlib import redirect_stdout
from stages.publish.commands.published import main
from stages.runtime.entry import UserError
for line in sys.stdin:
    sys.argv, said = ["published", *json.loads(line)], io.StringIO()
    try:
        with redirect_stdout(said):
            main()
    except UserError as error:
        said.write(f"error: {error}")
    print(json.dumps(said.getvalue()), flush=True)
"""


class Session:
    """`parrotflow published ...`, one after another in a process with the Hub's client."""

    def __init__(self, hub: Hub, **changes: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SESSION],
            env=environment(hub, **changes),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words: str) -> str:
        """What the command prints."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(words), file=self.process.stdin, flush=True)
        said: str = json.loads(self.process.stdout.readline())
        return said

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@pytest.fixture
def two(project: Path, hub: Hub) -> list[str]:
    """Two revisions in a repository; main leads to the second."""
    write_sections(project, publish__repository=NAME)
    first = published(hub)["revision"]
    write_model(project, seed=1)
    return [first, published(hub)["revision"]]


def test_revisions_on_the_hub_are_listed_loaded_promoted_rolled_back_and_removed(two: list[str], hub: Hub) -> None:
    first, second = two
    repository = hub.repositories[NAME]
    reader = Session(hub, HF_TOKEN=READER)
    assert second in reader("list")
    assert "may not write" in reader("rollback")
    assert repository.tree("main") == repository.tree(second)
    reader.close()

    session = Session(hub)
    rows = json.loads(session("list", "--json"))
    assert {row["revision"]: row["main"] for row in rows} == {first: False, second: True}
    assert all(row["bytes"] > row["bytes_of_its_own"] > 0 for row in rows)
    assert json.loads(session("diff", first, second, "--json"))["files"].keys() >= {"model.safetensors"}

    folder = Path(session("path", first).strip())
    assert load_file(folder / "model.safetensors")
    assert [line.split()[:2] for line in session("verify").splitlines()] == [[second, "intact"], [first, "intact"]]

    uploads = hub.requests(r"^PUT")
    assert session("rollback") == f"main leads to {first}; before: {second}\n"
    assert repository.tree("main") == repository.tree(first)
    assert session("rollback").startswith(f"error: {NAME}: no revision that main led to before {first}")
    assert "already" in session("promote", first)
    assert f"main leads to {second}; before: {first}" in session("promote", second)
    assert repository.tree("main") == repository.tree(second)
    assert hub.requests(r"^PUT") == uploads  # large files are copied on the Hub

    assert "main leads to it" in session("remove", second)
    assert session("remove", first).startswith(f"removed {first}: ")
    assert set(repository.refs("tags")) == {second}
    assert not [branch for branch in repository.refs("heads") if first in branch]
    session.close()
