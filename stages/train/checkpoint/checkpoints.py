"""Checkpoints that a crash at any instant cannot damage, written while training continues.

    .parrotflow/checkpoints/FINGERPRINT/
        lock                     held by the run that writes here
        curves/                  the current curves
        step-00000100/
            .metadata, __0_0.distcp ...  sharded state (torch.distributed.checkpoint), a file per process
            NAME.tsv                     the curves up to this step
            manifest.json                the step, its history, and the sha256 of every file; written last

A thread writes a copy of the state to a `.partial` folder, flushes it to the disk, adds the manifest and renames the
folder; only then are older checkpoints deleted. Checkpoints of `export_steps` are kept, because the end of the run
exports each as a model folder. An incomplete or damaged checkpoint is skipped with a warning.
"""

import fcntl
import io
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, cast

import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from stages.runtime.atomic import file_sha256, flush_to_disk
from stages.runtime.errors import UserError, first_line
from stages.runtime.supervision import report_saving
from stages.train.checkpoint.curves import CurveFiles
from stages.train.checkpoint.manifest import (
    CheckpointManifest,
    History,
    TrainingProgress,
    content_sha256,
    fault,
    misfit,
    read_manifest,
    write_manifest,
)
from stages.train.checkpoint.mirror import Mirror
from stages.train.compute.fsdp import uses_fsdp
from stages.train.compute.optim.build import Optimizers
from stages.train.compute.processes import PROCESS_GROUP, count, on_main
from stages.train.monitoring.params import MonitoringParams
from stages.train.params import TrainParams

SHARED_WITHIN_SECONDS = 10.0
"""How long a file of the main process may take to appear on another machine (network file systems cache folders)."""


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(
        self, folder: Path, accelerator: Accelerator, params: TrainParams, monitoring: MonitoringParams
    ) -> None:
        """Raises UserError if another run writes to the folder, or not all processes see it."""
        self.folder = folder
        self.history = History()
        self.accelerator = accelerator
        self.params = params
        self.monitoring = monitoring
        self.mirror = Mirror(folder.name)
        self._lock: IO[str] | None = None
        on_main(accelerator, self._prepare)
        self._check_shared()
        self.curves = CurveFiles(self.folder / "curves")
        self._alone = accelerator.num_processes == 1
        # A separate group keeps these messages apart from the training's. On GPUs torch requires a gloo group even if
        # the launcher (ddp, fsdp2) started a single process.
        timeout = PROCESS_GROUP.timeout
        self._group = dist.new_group(backend="gloo", timeout=timeout) if dist.is_initialized() else None
        # If every process has the whole state, only the main one copies it to the host.
        self._saves = accelerator.is_main_process or uses_fsdp()
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    def _prepare(self) -> None:
        """Lock the folder for this run and remove partial checkpoints of a killed one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # The kernel releases the lock when this process ends, however it ends.
        self._lock = (self.folder / "lock").open("a", encoding="utf-8")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{self.folder}: another training of the same parameters, data and code is running and writes here; "
                "wait for it to end, or stop it"
            ) from None
        for left_behind in self.folder.glob("*.partial"):
            shutil.rmtree(left_behind, ignore_errors=True)

    def _check_shared(self) -> None:
        """Raise UserError if a process does not see the main process's folder, where it must write its state."""
        processes = self.accelerator.num_processes
        if processes == 1:
            return

        def touch() -> Path:
            path = self.folder / f"seen-{uuid.uuid4().hex}"
            path.touch()
            return path

        probe = on_main(self.accelerator, touch)
        deadline = time.monotonic() + SHARED_WITHIN_SECONDS
        while not probe.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        seeing = count(self.accelerator, probe.exists())
        if self.accelerator.is_main_process:
            probe.unlink()
        if seeing < processes:
            raise UserError(
                f"{self.folder.parent}: {processes - seeing} of {processes} processes do not see the files of the main "
                "one; all machines need the project's folder on a shared file system"
            )

    def save(self, progress: TrainingProgress, model: nn.Module, optimizers: Optimizers) -> None:
        """Begin to write a checkpoint once the previous one is written. Every process calls this."""
        self.wait()
        path = self.path(progress.step)
        partial_path = self.folder / f"{path.name}.partial"
        partial_path.mkdir(parents=True, exist_ok=True)
        if self.accelerator.is_main_process:
            self.curves.copy_to(partial_path)
        state = _state(model, optimizers) if self._saves else {}
        # Copying ahead would make the writing thread initialize CUDA, which takes memory on the first GPU.
        writer = FileSystemWriter(partial_path, per_thread_copy_ahead=0)
        writer.fs = _Files()
        stager = DefaultStager(StagingOptions(False, False, False, False))  # waits until all is copied to the host
        staged = async_save(
            state, storage_writer=writer, async_stager=stager, no_dist=self._alone, process_group=self._group
        )
        cast("Future[Any]", staged).add_done_callback(lambda _: stager.close())  # else it keeps the copy
        self._writing = self._thread.submit(self._finish, cast("Future[Any]", staged), partial_path, path, progress)

    def wait(self) -> bool:
        """Wait until the last checkpoint is written; False if that failed, and training continues without it."""
        if self._writing is None:
            return True
        writing, self._writing = self._writing, None
        while not writing.done():
            report_saving()
            futures.wait([writing], timeout=5)
        try:
            writing.result()
        except (OSError, CheckpointException) as error:
            causes = [str(failure[0]) for failure in getattr(error, "failures", {}).values()] or [str(error)]
            # If the disk is full, torch often reports only a later consequence.
            free = f"{shutil.disk_usage(self.folder).free / 1e6:,.1f} MB are free on its disk"
            self.accelerator.print(
                f"warning: a checkpoint could not be written ({causes[0]}; {free}); the run continues"
            )
            if self.accelerator.is_main_process:
                for left_behind in self.folder.glob("*.partial"):
                    shutil.rmtree(left_behind, ignore_errors=True)
            return False
        return True

    def finish(self) -> bool:
        """As `wait`, and wait a moment for its upload too."""
        written = self.wait()
        self.mirror.finish()
        return written

    def _finish(self, staged: "Future[Any]", partial_path: Path, path: Path, progress: TrainingProgress) -> None:
        staged.result()
        if not self.accelerator.is_main_process:
            return
        files = sorted(file for file in partial_path.iterdir() if file.is_file())
        for file in files:
            flush_to_disk(file)
        sha256 = {file.name: file_sha256(file) for file in files}
        history = replace(self.history, contents=self.history.contents | {progress.step: content_sha256(sha256)})
        write_manifest(partial_path, progress, history, sha256)
        shutil.rmtree(path, ignore_errors=True)
        partial_path.rename(path)
        flush_to_disk(self.folder)
        self.history.contents.update(history.contents)
        exported, every = set(map(self.path, self.params.export_steps)), self.monitoring.milestone_every_steps
        # Later checkpoints are damaged: they do not count as kept, and are replaced when their steps are reached.
        for old in [done for done in self._all() if done <= path][: -self.monitoring.checkpoints_kept]:
            if old not in exported and (every is None or step_of(old) % every):
                shutil.rmtree(old, ignore_errors=True)
        self.mirror.push([*sorted(done for done in exported if done < path and done.is_dir()), path])

    def path(self, step: int) -> Path:
        """The folder of the checkpoint of a step."""
        return self.folder / f"step-{step:08d}"

    def _all(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("step-*") if not path.name.endswith(".partial"))

    def latest(self) -> Path | None:
        """The newest intact checkpoint, chosen by the main process; if there is none, the mirror is downloaded.

        If a step of `export_steps` was not kept, later checkpoints are skipped, so that the run computes it again.
        """

        def choose() -> Path | None:
            if not self._all():
                self.mirror.pull(self.folder)
            wanted = self.params.export_steps
            for path in reversed(self._all()):
                missing = [step for step in wanted if step < step_of(path) and not self.path(step).is_dir()]
                problem = f"step {missing[0]} (train.export_steps) was not kept" if missing else fault(path)
                if not problem:
                    return path
                print(f"warning: {path} is skipped: {problem}", flush=True)
            return None

        return on_main(self.accelerator, choose)

    def load(self, path: Path, model: nn.Module, optimizers: Optimizers) -> CheckpointManifest:
        """Load a checkpoint's state into the model and the optimizers, on any number of processes.

        The optimizers keep their settings. Raises UserError if the state is of another model or optimizer.
        """
        state = _state(model, optimizers)
        if difference := misfit(path, state["model"]):
            raise UserError(f"{path}: a checkpoint of another model: {difference}")
        settings = [dict(group) for optimizer in optimizers for group in optimizer.param_groups]
        try:
            load(state, storage_reader=FileSystemReader(path), no_dist=self._alone)
        except CheckpointException as error:
            cause = first_line(next(iter(error.failures.values()))[0])
            raise UserError(f"{path}: a checkpoint of other optimizers: {cause}") from None
        set_state_dict(model, list(optimizers), model_state_dict=state["model"], optim_state_dict=state["optimizers"])
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        for group, before in zip(groups, settings, strict=True):
            group.update({name: value for name, value in before.items() if name != "params"})
        return read_manifest(path)


class _Files(FileSystem):
    @contextmanager
    def create_stream(self, path: "str | os.PathLike[str]", mode: str) -> Iterator[io.IOBase]:
        with _File(io.FileIO(path, mode)) as stream:
            yield stream


class _File(io.BufferedWriter):
    """torch flushes a file again when its wrapper is collected (`NoCloseWriter`, torch 2.13). After a failed write the
    file is closed by then, and Python 3.13 would print a traceback."""

    def flush(self) -> None:
        if not self.closed:
            super().flush()


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name."""
    return int(checkpoint.name.removeprefix("step-"))


def _state(model: nn.Module, optimizers: Optimizers) -> dict[str, Any]:
    weights, optimizer_state = get_state_dict(model, list(optimizers))
    # Loading changes the order, and with it the bytes of the files whose hashes identify a state.
    states = cast("dict[str, dict[str, Any]]", optimizer_state["state"])
    optimizer_state["state"] = {name: dict(sorted(states[name].items())) for name in sorted(states)}
    return {"model": weights, "optimizers": optimizer_state}
