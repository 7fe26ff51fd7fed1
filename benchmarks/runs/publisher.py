"""Publishing with the real client, in a process that starts at once: forked from one that has imported it."""

import importlib
import multiprocessing
import os
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants
from huggingface_hub.utils import _http

from stages.publish.hub import retries
from stages.publish.hub.push_steps import push
from stages.publish.hub.steps import exported_steps, run_of_model
from stages.publish.params import PublishParams
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
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        assert self.process.exitcode is not None
        return self.process.exitcode, self.output.read_text(encoding="utf-8")


def start(module: str, folder: Path, environment: dict[str, str]) -> Publisher:
    """Run `main` of a module in a project, with this environment alone."""
    output = folder / "output.txt"
    process = FORKING.Process(target=run, args=(module, folder, environment, output), daemon=True)
    process.start()
    return Publisher(process, output)


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
    retries.FIRST_WAIT_SECONDS = 0.01  # from 0.5
    run_stage(importlib.import_module(module).main)


def main() -> None:
    """What `push_steps` does once training has exported its first step."""
    push(exported_steps()[0], str(run_of_model()), read_section("publish", PublishParams))
