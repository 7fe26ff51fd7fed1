"""Publishing with the real client, in a process that starts at once: forked from one that has imported it."""

import importlib
import multiprocessing
import os
import signal
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path

from huggingface_hub import constants
from huggingface_hub.utils import _http

from stages.publish.hub import client
from stages.publish.hub.push_steps import push
from stages.publish.params import PublishParams
from stages.publish.revision import exported_steps, run_of_model
from stages.runtime.entry import run_stage
from stages.runtime.section import read_section

MODULES = ["stages.publish.__main__", "stages.publish.hub.publication", "benchmarks.runs.publisher", "hf_xet"]

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(MODULES)

PUBLISH, PUSH_FIRST_STEP = "stages.publish.__main__", "benchmarks.runs.publisher"


@dataclass(frozen=True)
class Publisher:
    """One process that publishes."""

    process: multiprocessing.process.BaseProcess
    output: Path

    def wait(self, seconds: float) -> tuple[int, str]:
        """Its exit code, negative for a signal, and what it printed. One that takes longer is killed."""
        # Not `join`: another thread that starts a process may take the exit code first.
        if not connection.wait([self.process.sentinel], seconds):
            self.process.kill()
            connection.wait([self.process.sentinel])
        code = code_file(self.output)
        return int(code.read_text()) if code.exists() else -signal.SIGKILL, self.output.read_text(encoding="utf-8")


def start(module: str, folder: Path, environment: dict[str, str]) -> Publisher:
    """Run `main` of a module in a project, with this environment alone."""
    output = folder / "output.txt"
    output.write_bytes(b"")
    code_file(output).unlink(missing_ok=True)
    process = FORKING.Process(target=run, args=(module, folder, environment, output), daemon=True)
    process.start()
    return Publisher(process, output)


def code_file(output: Path) -> Path:
    """Where a process leaves its exit code; one that is killed leaves none."""
    return output.with_suffix(".code")


def run(module: str, folder: Path, environment: dict[str, str], output: Path) -> None:
    """In the new process: as `python -m module`, whose client makes all its attempts but hardly waits between them."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    importlib.reload(constants)  # which hold the environment as it was when they were imported
    waits = _http.http_backoff.__kwdefaults__ or {}
    waits.update(base_wait_time=0.01, max_wait_time=0.01)  # from 1 and 8 seconds
    client.FIRST_WAIT_SECONDS = 0.01  # from 0.5
    code: object = 1
    try:
        run_stage(importlib.import_module(module).main)
        code = 0
    except SystemExit as end:
        code = end.code
    finally:
        code_file(output).write_text(str(code))


def main() -> None:
    """What `push_steps` does once training has exported its first step."""
    push(exported_steps()[0], str(run_of_model()), read_section("publish", PublishParams))
