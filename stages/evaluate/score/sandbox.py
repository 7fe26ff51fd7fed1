"""The sandbox: each program runs in its own bubblewrap, started by inside.py.

`python -m stages.evaluate.score.sandbox` checks whether this machine can create one.

Available inside, read-only: Python, its standard library, the C libraries, and inside.py. There is no network, home,
environment, /proc, or device except /dev/null, and only a small tmpfs is writable. Its namespaces end with the program,
so nothing remains for the next one.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

from stages.evaluate.score import inside
from stages.evaluate.score.params import Limits, ScoreParams
from stages.evaluate.score.seccomp import filter_program
from stages.formats.evaluation.scores import Outcome, SampleResult
from stages.runtime.errors import UserError
from stages.runtime.section import read_section
from stages.runtime.stage import run_stage

LEVEL = "bubblewrap+rlimits+seccomp"
"""How candidates are isolated; a machine that lacks any of it is refused."""

NOBODY = "65534"

C_LIBRARY_FOLDERS = (Path("/lib"), Path("/usr/lib"), Path("/lib64"), Path("/usr/lib64"))
"""Folders of the C libraries and their loader."""

RIGHT = "import subprocess\ndef double(number):\n    return 2 * number\nassert double(2) == 4\n"
"""A correct program, to check that candidates can import libraries."""

FAILURES: tuple[SampleResult, ...] = ("assertion", "exception", "syntax", "memory")
"""Failures that inside.py reports."""


def require_isolation(limits: Limits) -> None:
    """Raise UserError if this machine cannot isolate programs, or the limits are too low for any."""
    result = run_sandboxed(RIGHT, limits).result
    if result in ("timeout", "memory"):
        named = ", ".join(f"{name} = {value:g}" for name, value in limits.model_dump().items())
        raise UserError(f"score.limits ({named}): too low for a program that does nothing: {result}")
    if result != "passed":
        raise refused("a correct program does not pass in the sandbox")


def run_sandboxed(program: str, limits: Limits) -> Outcome:
    """Run a program in its own sandbox. Raises UserError if this machine cannot create one."""
    try:
        rules = filter_program()
    except OSError as error:
        raise refused(str(error.strerror)) from None
    nonce = secrets.token_hex(16)
    verdict, theirs = os.pipe()
    # Read after the program has ended. A candidate can fill the pipe, but not block us.
    os.set_blocking(verdict, False)
    filters, ours = os.pipe()
    try:
        os.write(ours, rules)
        os.close(ours)
        command = [*sandbox_command(), "--seccomp", str(filters)]
        command += [str(python()), "-s", "-S", "-P", "-B", "-X", "utf8", "/inside.py"]
        command += [str(theirs), str(limits.cpu_seconds), str(limits.memory_megabytes * 1_000_000)]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,  # from bubblewrap; inside.py closes its own
            pass_fds=(theirs, filters),
            env={},
            cwd="/",
            process_group=watcher().pid,
        ) as sandbox:
            try:
                stdin = f"{nonce}\n{program}".encode("utf-8", "surrogatepass")
                _, messages = sandbox.communicate(stdin, limits.wall_seconds)
            except subprocess.TimeoutExpired:
                return Outcome("timeout")
            finally:
                end(sandbox)
        try:
            written = os.read(verdict, inside.MAX_VERDICT_BYTES)
        except BlockingIOError:
            written = b""
    finally:
        for descriptor in (verdict, theirs, filters):
            os.close(descriptor)
    if outcome := sandbox_outcome(written.decode("utf-8", "replace"), nonce):
        return outcome
    if lines := messages.decode(errors="replace").strip().splitlines():
        raise refused(lines[-1])
    return Outcome("timeout" if sandbox.returncode == 128 + signal.SIGXCPU else "died")


@cache
def watcher() -> "subprocess.Popen[bytes]":
    """A shell that kills its process group, in which sandboxes start, however this process ends.

    `--die-with-parent` takes effect only after bubblewrap has started.
    """
    return subprocess.Popen(["/bin/sh", "-c", "read _; kill -KILL 0"], stdin=subprocess.PIPE, process_group=0)


def end_all() -> None:
    """Kill every sandbox of this process."""
    watcher().communicate()  # closes its input
    watcher.cache_clear()


def end(sandbox: "subprocess.Popen[bytes]") -> None:
    """Kill bubblewrap, if it still runs, and its child, which would outlive it while waiting for its namespaces."""
    if sandbox.poll() is None:
        sandbox.send_signal(signal.SIGSTOP)  # so that it starts no further child
        for child in psutil.Process(sandbox.pid).children():
            with suppress(psutil.NoSuchProcess):
                child.kill()
        sandbox.kill()


def sandbox_outcome(written: str, nonce: str) -> Outcome | None:
    """Parse what inside.py wrote: the nonce or a failure; None for anything else."""
    if written == nonce:
        return Outcome("passed")
    result, _, name = written.partition(" ")
    # Not trusted: a candidate chooses the names of its exceptions, and may write to the pipe itself.
    for failure in FAILURES:
        if result == failure:
            return Outcome(failure, name if name.isidentifier() else "")
    return None


def refused(reason: str) -> UserError:
    """The error for a machine that cannot isolate programs."""
    return UserError(
        f"score.run_generated_code = true, but generated code cannot be isolated here: {reason.rstrip('.')}. Install "
        "bubblewrap (0.7 or newer, `apt-get install bubblewrap`) on Linux and allow it to create user namespaces "
        "(docs/how-to/evaluation.md says how in a container), or set it to false: "
        "generated code never runs without isolation"
    )


@cache
def sandbox_command() -> tuple[str, ...]:
    """bubblewrap with its options. Raises UserError if it is not installed.

    The candidate runs as `nobody`, without capabilities, in a separate user namespace, even if root started it.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise refused("bubblewrap (`bwrap`) is not installed")
    paths = shown_paths()
    require_private(paths)
    return (
        program,
        *("--unshare-user", "--uid", NOBODY, "--gid", NOBODY),
        *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        *("--hostname", "sandbox"),
        *("--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"),
        *(
            word
            for link in C_LIBRARY_FOLDERS
            if link.is_symlink()
            for word in ("--symlink", str(link.readlink()), str(link))
        ),
        *(word for path in map(str, paths) for word in ("--ro-bind", path, path)),
        *(word for path in map(str, package_folders(paths)) for word in ("--tmpfs", path, "--remount-ro", path)),
        *("--ro-bind", inside.__file__, "/inside.py"),
        *("--dev-bind", "/dev/null", "/dev/null", "--size", "16000000", "--tmpfs", "/tmp", "--remount-ro", "/"),
        *("--chdir", "/tmp"),
        # A candidate's result may depend on the order of a set of strings.
        *("--setenv", "PYTHONHASHSEED", "0"),
    )


def python() -> Path:
    """The Python executable, outside of any virtual environment."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def shown_paths() -> list[Path]:
    """The files and folders that Python needs. `package_folders` below them are hidden."""
    paths: list[Path] = []
    architecture = sysconfig.get_config_var("MULTIARCH")
    for folder in C_LIBRARY_FOLDERS:
        if folder.is_symlink():
            continue  # such as /lib; each mount costs a program a millisecond
        if architecture and (folder / architecture).is_dir():  # Debian
            paths += [folder / architecture, *sorted(folder.glob("ld-*"))]
        elif folder.is_dir():
            paths.append(folder)
    paths += [Path(sysconfig.get_path("stdlib")).resolve(), python()]
    own_libraries = Path(sys.base_prefix).resolve() / "lib"
    if own_libraries not in C_LIBRARY_FOLDERS:
        paths += [path for path in sorted(own_libraries.glob("*.so*")) if path.is_file() and not path.is_symlink()]
    return paths


def package_folders(paths: Iterable[Path]) -> list[Path]:
    """The folders of installed packages in `paths`."""
    folders = {folder for path in paths for folder in (*path.glob("*-packages"), *path.glob("python*/*-packages"))}
    return [folder for folder in sorted(folders) if not folder.is_symlink() and folders.isdisjoint(folder.parents)]


def require_private(paths: Iterable[Path]) -> None:
    """Raise UserError if the project or the home folder is inside one of `paths`, which candidates can read."""
    for path in paths:
        for folder in (Path.cwd(), Path(os.environ.get("HOME") or "/").resolve()):
            if folder.is_relative_to(path.resolve()):
                raise UserError(
                    f"score.run_generated_code = true, but generated code can read {path} (Python's libraries), "
                    f"and {folder} is inside it: move the project, or set it to false"
                )


if __name__ == "__main__":
    run_stage(lambda: require_isolation(read_section("score", ScoreParams).limits))
