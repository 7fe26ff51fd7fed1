"""The sandbox, in which a program is run and judged: bubblewrap, and in it a server that forks (inside.py).

Available inside, read-only: Python, its standard library, the C libraries, and inside.py. No network, no home,
no environment, no /proc, no device but /dev/null, and nothing writable but a small tmpfs of each program.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from stages.evaluate.score.params import Limits
from stages.formats.evaluation.verdicts import Outcome
from stages.runtime.entry import UserError

SERVER = "stages.evaluate.score.inside"
INSIDE = Path(__file__).with_name("inside.py")

LEVEL = "bubblewrap+rlimits+seccomp"
"""How a candidate is isolated; a machine that cannot do all of it is refused."""

NOBODY = "65534"

LIBRARIES = (Path("/lib"), Path("/usr/lib"), Path("/lib64"), Path("/usr/lib64"))
"""Where systems keep the C libraries and their loader."""

RIGHT = "import subprocess\ndef double(number):\n    return 2 * number\nassert double(2) == 4\n"
"""What every sandbox judges first: the libraries that a candidate imports can be read."""

ATTEMPTS = 2
"""A program that is lost is judged once more: the machine may have killed it, for want of memory say."""

CLOSE_SECONDS = 5
GRACE_SECONDS = 60
"""Seconds after the wall limit, for the start too. The sandbox enforces the limit; one that is later still is lost."""


class Judge:
    """Judges one program after the other; close it at the end."""

    _ready: bool
    _process: subprocess.Popen[bytes]

    def __init__(self, limits: Limits) -> None:
        """Start the sandbox, which ends with the thread that started it. Raises UserError without bubblewrap."""
        self._limits = limits
        self._killed = False
        self._open()

    def wait_until_ready(self) -> None:
        """Raises UserError where this machine cannot isolate."""
        if self._ready:
            return
        found = self._answer(RIGHT)
        if found.result in ("timeout", "memory"):
            named = ", ".join(f"{name} = {value:g}" for name, value in self._limits.model_dump().items())
            raise UserError(f"score.limits ({named}): too low for a program that does nothing: {found.result}")
        if found.result == "lost":
            self._process.kill()
            said = self._process.communicate()[1].decode(errors="replace").strip().splitlines()
            raise refused(said[-1] if said else "it did not start")
        if found.result != "passed":
            raise refused("a program that is right does not pass in the sandbox")
        self._ready = True

    def judge(self, program: str) -> Outcome:
        """Run a program, in a new sandbox if it was lost. Raises UserError where no new sandbox can be made."""
        for _ in range(ATTEMPTS):
            self.wait_until_ready()
            found = self._answer(program)
            if found.result != "lost" or self._killed:
                break
            self.close()
            self._open()
        return found

    def _answer(self, program: str) -> Outcome:
        job = json.dumps({"program": program, **self._limits.model_dump()})
        try:
            self._control.settimeout(self._limits.wall_seconds + GRACE_SECONDS)
            self._control.sendall(f"{job}\n".encode())
            answer = self._answers.readline()
        except OSError:
            answer = b""
        return Outcome(*json.loads(answer)) if answer.endswith(b"\n") else Outcome("lost")

    def _open(self) -> None:
        self._ready = False
        command = sandbox_command()
        self._control, theirs = socket.socketpair()
        self._answers = self._control.makefile("rb")
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={},
                cwd="/",
                # A terminal sends Ctrl-C to all processes of a session: a sandbox would end, and with it a verdict.
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the sandbox, also while another thread judges, whose outcome says nothing; only `close` may follow."""
        self._killed = True
        self._process.kill()

    def close(self) -> None:
        """End the sandbox, with all that runs in it."""
        self._answers.close()
        self._control.close()  # at which the server ends
        try:
            self._process.communicate(timeout=CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def refused(reason: str) -> UserError:
    """The error for a machine that cannot isolate."""
    return UserError(
        f"score.run_generated_code = true, but generated code cannot be isolated here: {reason.rstrip('.')}. Install "
        "bubblewrap (`apt-get install bubblewrap`) on Linux and allow it to make namespaces "
        "(docs/how-to/evaluation.md says how in a container), or set it to false: "
        "generated code never runs without isolation"
    )


def sandbox_command() -> list[str]:
    """bubblewrap with its options, and the server that it runs. Raises UserError where it is not installed.

    Root keeps its ids, so that the server can become the user `nobody`, whose processes the kernel limits; any other
    user gets a user namespace. The capabilities are those that the server needs to isolate programs from each other; in
    a user namespace they count for nothing outside.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise refused("bubblewrap (`bwrap`) is not installed")
    root = os.getuid() == 0
    user = [] if root else ["--unshare-user", "--uid", NOBODY, "--gid", NOBODY]
    capabilities = ["CAP_SYS_ADMIN", *(["CAP_SETUID", "CAP_SETGID", "CAP_KILL"] if root else [])]
    code = f"/code/{SERVER.replace('.', '/')}.py"
    paths = shown_paths()
    # Parent folders that bubblewrap creates on its own could be entered by root only.
    above = [str(folder) for path in (*paths, Path(code)) for folder in reversed(path.parents[:-1])]
    return [
        program,
        *user,
        *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        *("--hostname", "sandbox"),
        *("--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"),
        *(word for name in capabilities for word in ("--cap-add", name)),
        *(word for folder in dict.fromkeys([*above, "/dev"]) for word in ("--dir", folder)),
        *(word for path in map(str, paths) for word in ("--ro-bind", path, path)),
        *(word for path in map(str, hidden_paths(paths)) for word in ("--tmpfs", path, "--remount-ro", path)),
        *("--ro-bind", str(INSIDE), code),
        *("--dev-bind", "/dev/null", "/dev/null", "--dir", "/tmp", "--remount-ro", "/"),
        # The order of sets of strings depends on the seed, and so may a candidate's result.
        *("--setenv", "PYTHONHASHSEED", "0"),
        *(str(python()), "-s", "-S", "-P", "-B", "-X", "utf8", "-c"),
        f"import sys; sys.path.insert(0, '/code'); from {SERVER} import main; main()",
    ]


def python() -> Path:
    """The executable of Python, outside of any virtual environment."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def shown_paths() -> list[Path]:
    """The files and folders that Python needs. No installed packages: those are hidden below them."""
    paths: list[Path] = []
    architecture = sysconfig.get_config_var("MULTIARCH")
    for folder in LIBRARIES:
        if architecture and (folder / architecture).is_dir():  # as on Debian
            paths += [folder / architecture, *sorted(folder.glob("ld-*"))]
        elif folder.is_dir():
            paths.append(folder)
    paths += [Path(sysconfig.get_path("stdlib")).resolve(), python()]
    own_libraries = Path(sys.base_prefix).resolve() / "lib"
    if own_libraries not in LIBRARIES:
        paths += [path for path in sorted(own_libraries.glob("*.so*")) if path.is_file()]
    return paths


def hidden_paths(paths: Iterable[Path]) -> list[Path]:
    """The folders at or below `paths` that must not be seen: installed packages, the project and the home folder.

    Raises UserError where one of `paths` is the project or the home folder itself.
    """
    private = [Path.cwd(), Path(os.environ.get("HOME") or "/").resolve()]
    found: set[Path] = set()
    for path in paths:
        found.update(path.glob("*-packages"), path.glob("python*/*-packages"))
        real = path.resolve()
        if real in private:
            raise UserError(
                f"score.run_generated_code = true, but generated code can read {path}, where Python's libraries are, "
                "and it is also the project's or your home folder: move the project, or set it to false"
            )
        found.update(path / folder.relative_to(real) for folder in private if folder.is_relative_to(real))
    return [path for path in sorted(found) if not path.is_symlink() and found.isdisjoint(path.parents)]
