import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

import pytest

from stages.evaluate.score.params import Limits
from stages.evaluate.score.sandbox import Judge
from stages.formats.evaluation.verdicts import Outcome
from tests.small_project import ROOT

LIMITS = Limits(cpu_seconds=1, wall_seconds=3.0, memory_megabytes=256)

Run = Callable[[str, str], Outcome]
RunPython = Callable[[str], str]

IMPORTS = """
import json, os, resource, sys
from contextlib import closing
from dataclasses import astuple
from pathlib import Path
from stages.evaluate.score.sandbox import RIGHT, Judge
from stages.evaluate.score.scoring import judge_programs
from stages.runtime import cache
from tests.evaluate.score.conftest import LIMITS
"""

JUDGES_LINES = f"""{IMPORTS}
with closing(Judge(LIMITS)) as judge:
    for line in sys.stdin:
        print(json.dumps(astuple(judge.judge(json.loads(line)))), flush=True)
"""

NOBODY = "65534"
USERS = ["root", "an ordinary user"] if os.getuid() == 0 else ["an ordinary user"]


class Judges(Protocol):
    def judge(self, program: str) -> Outcome: ...


class JudgeOfAnOrdinaryUser:
    """A judge in a process without privileges: bubblewrap isolates there by a user namespace.

    The process sees the folders above Python and the project as root does: in a mount namespace of its own, those that
    only root may enter are replaced by others that hold nothing else.
    """

    def __init__(self, kept: Path) -> None:
        paths = {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), ROOT}
        closed = {above for path in paths for above in path.parents if not above.stat().st_mode & 0o001}
        outermost = [folder for folder in closed if closed.isdisjoint(folder.parents)]
        behind = [
            (shlex.quote(str(path)), f"{kept}/{path.name}") for path in paths if not closed.isdisjoint(path.parents)
        ]
        script = ["set -e"]
        script += [f"mkdir {copy} && mount --rbind {path} {copy}" for path, copy in behind]
        script += [f"mount -t tmpfs -o mode=755 none {shlex.quote(str(folder))}" for folder in outermost]
        script += [f"mkdir -p {path} && mount --rbind {copy} {path}" for path, copy in behind]
        drop = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--no-new-privs"]
        script.append(f"cd {shlex.quote(str(ROOT))}")
        script.append("exec " + shlex.join([*drop, sys.executable, "-c", JUDGES_LINES]))
        self._process = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def judge(self, program: str) -> Outcome:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(program) + "\n")
        self._process.stdin.flush()
        return Outcome(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="session", params=USERS)
def judge(request: pytest.FixtureRequest) -> Iterator[Judges]:
    """Of root, and of an ordinary user: the two are isolated by different means."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as kept:
        ordinary = os.getuid() == 0 and request.param == "an ordinary user"
        with closing(JudgeOfAnOrdinaryUser(Path(kept)) if ordinary else Judge(LIMITS)) as judge:
            yield judge


@pytest.fixture
def run(judge: Judges) -> Run:
    """Judge a candidate by HumanEval's convention: `check(f)`."""

    def run(code: str, test: str) -> Outcome:
        return judge.judge(f"{code}\n{test}\ncheck(f)")

    return run


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may read, and not below /tmp: a candidate has a /tmp of its own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def run_python() -> RunPython:
    """Run code in a process of its own, whose limits it may change; returns what it prints last."""

    def run_python(code: str) -> str:
        command = [sys.executable, "-c", IMPORTS + code]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().splitlines()[-1]

    return run_python
