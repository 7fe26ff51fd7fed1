"""Commands of Python begun by the fork of a process that has imported what they import: seconds less for each.

That process is one of its own, for each program: it has a single thread, and no test has changed anything in it.
"""

import atexit
import functools
import gc
import json
import logging
import os
import runpy
import select
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from types import ModuleType
from typing import NoReturn

DVC = "dvc"
PARROTFLOW = "parrotflow"
PYTHON = "python"

IMPORTED = {
    DVC: ("dvc.cli", "dvc.commands.repro", "dvc.repo"),
    PARROTFLOW: ("flows.cli", "flows.plan.graph", "flows.plan.settings", "flows.sweep.run_cells", "flows.pipeline"),
    PYTHON: ("stages.publish.__main__", "stages.publish.hub", "dvc.repo"),
}
"""By the program: what each child finds imported with all that it uses. The first one of a command has `main`."""

ANEW = ("flows", "stages", "huggingface_hub")
"""Imported by each child anew: the code of its own folder, and what reads the environment when it is imported."""

LONGEST_REQUEST = 1 << 20

TIMEOUT_SECONDS = 500


def run_forked(
    program: str,
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    stderr: int = subprocess.PIPE,
) -> "subprocess.CompletedProcess[str]":
    """Run `dvc`, `parrotflow` or `python -c`, `-m` with these arguments in a folder to its end."""
    variables = dict(os.environ if environment is None else environment)
    mask = os.umask(0o22)
    os.umask(mask)
    request = json.dumps([program, [*arguments], str(folder), variables, mask]).encode()
    ended, to_ended = os.pipe()
    with os.fdopen(ended) as code, TemporaryFile("w+") as said, TemporaryFile("w+") as errors:
        where = said if stderr == subprocess.STDOUT else errors
        socket.send_fds(_fork_server(program).socket, [request], [said.fileno(), where.fileno(), to_ended])
        os.close(to_ended)
        if not select.select([code], [], [], TIMEOUT_SECONDS)[0]:
            raise subprocess.TimeoutExpired([program, *arguments], TIMEOUT_SECONDS)
        returned = int(code.read())
        said.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess([program, *arguments], returned, said.read(), errors.read())


class _ForkServer:
    """The process that forks. It ends with this one, however this one ends."""

    def __init__(self, program: str) -> None:
        self.socket, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self.home = TemporaryDirectory()
        own = {"HOME": self.home.name, "PREFECT_HOME": self.home.name, "PYTHONPATH": ""}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.forked", program],
                cwd=Path(__file__).parents[1],
                env=os.environ | own,
                stdin=theirs.fileno(),
            )
        atexit.register(self.close)

    def close(self) -> None:
        self.socket.close()
        self.process.wait()


@functools.cache
def _fork_server(program: str) -> _ForkServer:
    return _ForkServer(program)


def _serve(program: str, requests: socket.socket) -> None:
    """Import everything, then fork for each request until the socket is closed."""
    gc.disable()
    for name in IMPORTED[program]:
        import_module(name)
    gc.freeze()
    gc.enable()
    assert threading.active_count() == 1
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        request, descriptors, _, _ = socket.recv_fds(requests, LONGEST_REQUEST, 3)
        if not request:
            return
        if os.fork() == 0:
            _wait_for_child(*json.loads(request), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _wait_for_child(
    program: str,
    arguments: list[str],
    folder: str,
    variables: dict[str, str],
    mask: int,
    *descriptors: int,
) -> NoReturn:
    """Fork once more, and tell with which code that process has ended."""
    child = os.fork()
    if child == 0:
        for number, descriptor in enumerate(descriptors[:2], start=1):
            os.dup2(descriptor, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.environ.clear()
        os.environ.update(variables)
        os.chdir(folder)
        os.umask(mask)
        _run_as_if_just_started(program, arguments)
    os.write(descriptors[2], str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
    os._exit(0)


def _run_as_if_just_started(program: str, arguments: list[str]) -> NoReturn:
    sys.path[:1] = [str(Path.cwd()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    _log_there()
    for name in [*sys.modules]:
        if name.partition(".")[0] in ANEW:
            del sys.modules[name]
    if prefect := sys.modules.pop("prefect", None):
        sys.meta_path.insert(0, _PrefectsSettings(prefect))
    code: object = 1
    try:
        code = _run(program, arguments)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    # What the interpreter does at its end, but for freeing all that was imported.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _run(program: str, arguments: list[str]) -> object:
    match program, arguments:
        case "python", ["-c", text, *rest]:
            sys.argv = ["-c", *rest]
            exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})
            return 0
        case "python", ["-m", module, *rest]:
            sys.argv = [module, *rest]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            return 0
        case _:
            sys.argv = [program, *arguments]
            return import_module(IMPORTED[program][0]).main()


def _log_there() -> None:
    """Let DVC's loggers be as in a process of its own: they took the streams of this one when they were imported."""
    for name in ("dvc", "dvc_objects", "dvc_data"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler):
                handler.setStream(sys.stderr if handler.level >= logging.WARNING else sys.stdout)


class _PrefectsSettings(MetaPathFinder, Loader):
    """Lets the first import of Prefect read the environment, as it does in any process; the rest is there already."""

    def __init__(self, imported: ModuleType) -> None:
        self.imported, self.spec = imported, imported.__spec__

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname == "prefect" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.imported

    def exec_module(self, module: ModuleType) -> None:
        sys.meta_path.remove(self)
        module.__spec__ = self.spec
        context, configuration = (sys.modules[f"prefect.{name}"] for name in ("context", "logging.configuration"))
        context.refresh_global_settings_context()
        configuration.PROCESS_LOGGING_CONFIG.clear()
        configuration.setup_logging()


if __name__ == "__main__":
    asks = socket.socket(fileno=os.dup(0))
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    _serve(sys.argv[1], asks)
