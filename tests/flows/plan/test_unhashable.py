import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.plan.graph import make_plan
from stages.runtime.entry import UserError
from tests.flows.toy import make_toy

DVC_YAML = "stages: {list: {cmd: ls corpus > out.txt, deps: [corpus], outs: [out.txt]}}\n"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_toy(tmp_path / "p", DVC_YAML)
    monkeypatch.chdir(tmp_path / "p")
    Path("corpus/inner").mkdir(parents=True)
    Path("corpus/a.py").write_text("x = 1")


def bind(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Path("corpus/inner/.#a.py").symlink_to("gone"), "'corpus/inner/.#a.py' (a link to nowhere)"),
        (lambda: Path("corpus/loop.py").symlink_to("loop.py"), "'corpus/loop.py' (a link to nowhere)"),
        (lambda: os.mkfifo("corpus/pipe"), "'corpus/pipe' (not a regular file)"),
        (lambda: bind("corpus/s"), "'corpus/s' (not a regular file)"),
        (lambda: Path(os.fsdecode(b"corpus/caf\xe9.py")).touch(), r"'corpus/caf\udce9.py' (its name is not UTF-8)"),
    ],
)
def test_what_dvc_cannot_hash_is_named_with_what_to_do_and_never_waited_for(
    make: Callable[[], None], told: str
) -> None:
    make()

    with pytest.raises(UserError) as refused:
        make_plan()

    assert str(refused.value) == (f"DVC cannot read {told}; remove or rename each, or add its path to .dvcignore")


def test_what_dvcignore_lists_is_not_looked_at() -> None:
    Path("corpus/inner/.#a.py").symlink_to("gone")
    os.mkfifo("corpus/pipe")
    Path(".dvcignore").write_text("/corpus/**/.*\n/corpus/pipe\n")

    assert [stage.state for stage in make_plan()] == ["run"]


def test_links_to_files_and_folders_are_data() -> None:
    Path("corpus/same.py").symlink_to("a.py")
    Path("corpus/loop").symlink_to(".")

    assert [stage.state for stage in make_plan()] == ["run"]
