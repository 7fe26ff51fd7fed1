"""Commands of Python begun by a fork of this process, which has imported what they import: a second or more less.

Not for what imports Prefect, which reads the environment once, when it is imported.
"""

import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

DVC = "dvc"
PARROTFLOW = "parrotflow"

IMPORTED = {
    DVC: ("dvc.cli", "dvc.commands.repro", "dvc.repo"),
    PARROTFLOW: ("flows.cli", "flows.plan.graph", "flows.plan.params", "flows.sweep.sweep"),
}
"""By the program: what each child finds imported with all that it uses. The first one has `main`."""

OF_THE_PROJECT = ("flows", "stages", "filters", "sources")
"""Imported by each child anew: this process may have read the filters and sources of another project."""


def run_forked(
    program: str,
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    stderr: int = subprocess.PIPE,
) -> "subprocess.CompletedProcess[str]":
    """Run `dvc` or `parrotflow` with these arguments to its end."""
    for name in IMPORTED[program]:
        import_module(name)
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
            for name in [*sys.modules]:
                if name.partition(".")[0] in OF_THE_PROJECT:
                    del sys.modules[name]
            code = import_module(IMPORTED[program][0]).main()
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


def _log_there() -> None:
    """Let DVC's loggers be as in a process of its own: they took the streams of this one when they were imported."""
    for name in ("dvc", "dvc_objects", "dvc_data"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler):
                handler.setStream(sys.stderr if handler.level >= logging.WARNING else sys.stdout)
