"""Commands of Python begun by a fork of this process, which has imported what they import: a second or more less.

Not for what imports Prefect, which reads the environment once, when it is imported.
"""

import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

DVC = "dvc"
PARROTFLOW = "parrotflow"


def run_forked(
    program: str,
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    stderr: int = subprocess.PIPE,
) -> "subprocess.CompletedProcess[str]":
    """Run `dvc` or `parrotflow` with these arguments to its end."""
    # Imported here, by the process that is forked, so that each child finds it done.
    main = _dvc_main() if program == DVC else _parrotflow_main()
    variables = dict(os.environ if environment is None else environment)

    def child() -> None:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # among them the pipe by which Popen waits for an `exec`
        os.environ.clear()
        os.environ.update(variables)
        sys.argv = [program, *arguments]
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        _log_there()
        code: object = 1
        try:
            code = main() if program == DVC else _imported_anew()
        except SystemExit as ended:
            code = ended.code
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0)

    process = subprocess.Popen(
        [program],
        cwd=folder,
        preexec_fn=child,  # noqa: PLW1509
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )
    said, errors = process.communicate(timeout=500)
    return subprocess.CompletedProcess([program, *arguments], process.returncode, said, errors)


def _imported_anew() -> object:
    """`parrotflow` with the code of this project: this process may have read filters and sources of another one."""
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("flows", "stages", "filters", "sources"):
            del sys.modules[name]
    return _parrotflow_main()()


def _log_there() -> None:
    """Let DVC's loggers be as in a process of its own: they took the streams of this one when they were imported."""
    for name in ("dvc", "dvc_objects", "dvc_data"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler):
                handler.setStream(sys.stderr if handler.level >= logging.WARNING else sys.stdout)


def _dvc_main() -> Callable[[], object]:
    from dvc.cli import main
    from dvc.commands import repro  # noqa: F401
    from dvc.repo import Repo  # noqa: F401

    return lambda: main(sys.argv[1:])


def _parrotflow_main() -> Callable[[], object]:
    from flows.cli import main
    from flows.plan import graph, params  # noqa: F401
    from flows.sweep import sweep  # noqa: F401

    return main
