"""Checkpoints that a crash at any instant cannot damage, written while training continues.

    .parrotflow/checkpoints/FINGERPRINT/
        lock                     held by the run that writes here
        curves/                  the live curves
        exports/step-00000100-of-500/    models of `export_steps`, until the run ends
        step-00000100/
            .metadata, __0_0.distcp ...  sharded state (torch.distributed.checkpoint), a file per process
            NAME.tsv                     the curves so far
            manifest.json                the step, its history, and the sha256 of every file; written last

The state is copied, and a thread writes the copy to a `.partial` folder, flushes it to the disk, adds the manifest and
renames the folder; older checkpoints are deleted only afterwards. An incomplete or damaged one is skipped with a
warning.
"""

import fcntl
import shutil
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import IO, Any, cast

import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from stages.formats.model_folder import export_path
from stages.runtime.atomic import atomic_folder, file_sha256, flush_to_disk
from stages.runtime.entry import UserError, first_line
from stages.train.checkpoint.manifest import (
    CheckpointManifest,
    DataOnlyPlanner,
    History,
    TrainingProgress,
    content_sha256,
    fault,
    misfit,
    read_manifest,
    write_manifest,
)
from stages.train.checkpoint.mirror import MIRROR, Mirror
from stages.train.monitoring.report import CurveFiles
from stages.train.optim.optimizers import Optimizers
from stages.train.parallel import PROCESS_GROUP, count, on_main, uses_fsdp
from stages.train.params import TrainParams

CONTINUE = "PARROTFLOW_CONTINUE"
"""Names the run that is to be continued though the code has changed."""

SHARED_WITHIN_SECONDS = 10.0
"""How long a file of the main process may take to appear on another machine (network file systems cache folders)."""


class Checkpoints:
    """The checkpoints of one run, in a folder of its own."""

    def __init__(self, folder: Path, accelerator: Accelerator, params: TrainParams, mirror: Mirror) -> None:
        """Raises UserError where another run writes to the folder, or where not all processes see it."""
        self.folder = folder
        self.history = History()
        self.accelerator = accelerator
        self.params = params
        self.mirror = mirror
        self._lock: IO[str] | None = None
        on_main(accelerator, self._prepare)
        self._check_shared()
        self.curves = CurveFiles(self.folder / "curves", params.optimizer.peaks)
        self._alone = accelerator.num_processes == 1
        # A group of its own: its messages must not meet those of the training. On GPUs torch asks for one of CPUs also
        # where a launcher (ddp, fsdp2) has started a single process.
        timeout = PROCESS_GROUP.timeout
        self._group = dist.new_group(backend="gloo", timeout=timeout) if dist.is_initialized() else None
        # Where each process has all of the state, the main one's is saved: the others would copy it to the host too.
        self._saves = accelerator.is_main_process or uses_fsdp()
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    def _prepare(self) -> None:
        """Take the folder for this run and remove what a killed one left half written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # The kernel releases it when this process ends, however it ends.
        self._lock = (self.folder / "lock").open("a", encoding="utf-8")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{self.folder}: another training of the same parameters, data and code is running and writes here; "
                "wait for it to end, or end it"
            ) from None
        for left_behind in self.folder.glob("*.partial"):
            shutil.rmtree(left_behind, ignore_errors=True)

    def _check_shared(self) -> None:
        """Raise UserError where a process does not see the main process's folder: its state would be missing there."""
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
        """Begin to write a checkpoint, after the one before is done. Every process calls this."""
        self.wait()
        path = self.folder / f"step-{progress.step:08d}"
        partial_path = self.folder / f"{path.name}.partial"
        partial_path.mkdir(parents=True, exist_ok=True)
        state = _state(model, optimizers) if self._saves else {}
        # Without a copy ahead the thread that writes asks nothing of CUDA: it would take memory of the first GPU.
        writer = FileSystemWriter(partial_path, per_thread_copy_ahead=0)
        stager = DefaultStager(StagingOptions(False, False, False, False))  # waits until all is copied to the host
        staged = async_save(
            state, storage_writer=writer, async_stager=stager, no_dist=self._alone, process_group=self._group
        )
        cast("Future[Any]", staged).add_done_callback(lambda _: stager.close())  # else it keeps the copy
        self._writing = self._thread.submit(self._finish, cast("Future[Any]", staged), partial_path, path, progress)

    def wait(self) -> bool:
        """Wait until the last checkpoint is written; False where it could not be: training continues without it."""
        if self._writing is None:
            return True
        writing, self._writing = self._writing, None
        try:
            writing.result()
        except (OSError, CheckpointException) as error:
            causes = [str(failure[0]) for failure in getattr(error, "failures", {}).values()] or [str(error)]
            # Of a full disk torch often reports only a later consequence.
            free = f"{shutil.disk_usage(self.folder).free / 1e6:,.1f} MB are free on its disk"
            self.accelerator.print(
                f"warning: a checkpoint could not be written ({causes[0]}; {free}); the run continues"
            )
            if self.accelerator.is_main_process:
                for left_behind in self.folder.glob("*.partial"):
                    shutil.rmtree(left_behind, ignore_errors=True)
            return False
        return True

    def _finish(self, staged: "Future[Any]", partial_path: Path, path: Path, progress: TrainingProgress) -> None:
        staged.result()
        if not self.accelerator.is_main_process:
            return
        self.curves.copy_to(partial_path)
        files = sorted(file for file in partial_path.iterdir() if file.is_file())
        for file in files:
            flush_to_disk(file)
        contents = self.history.contents | {progress.step: content_sha256(partial_path)}
        history = replace(self.history, contents=contents)
        exports = self._exports_until(progress.step) if self.mirror.url else {}
        hashes = {step: file_hashes(folder, folder.stat().st_mtime_ns) for step, folder in exports.items()}
        write_manifest(partial_path, progress, history, {file.name: file_sha256(file) for file in files}, hashes)
        shutil.rmtree(path, ignore_errors=True)
        partial_path.rename(path)
        flush_to_disk(self.folder)
        self.history.contents.update(contents)
        # Later steps belong to a longer or shorter run that this one did not continue.
        every = self.params.milestone_every_steps
        for old in [done for done in self._all() if done.name <= path.name][: -self.params.checkpoints_kept]:
            if every is None or int(old.name.removeprefix("step-")) % every:
                shutil.rmtree(old, ignore_errors=True)
        named = ((step, name, sha256) for step, names in hashes.items() for name, sha256 in names.items())
        self.mirror.push(path, {sha256: exports[step] / name for step, name, sha256 in named})

    def export_path(self, step: int) -> Path:
        """Where the model of one of `export_steps` is kept until the end of the run."""
        return export_path(self.folder, step, self.params.max_steps)

    def exported(self, step: int) -> Path | None:
        """The model of one of `export_steps`: of this run, or of one of another length that had the same weights.

        The newest: a step that was computed again, maybe on other hardware, leaves the last bits that count there.
        """
        found = (self.folder / "exports").glob(f"step-{step:08d}-of-*")
        same = [path for path in found if step <= self.shared_steps(int(path.name.rpartition("-")[2]))]
        return max(same, key=lambda path: path.stat().st_mtime_ns, default=None)

    def _exports_until(self, step: int) -> dict[int, Path]:
        found = {wanted: self.exported(wanted) for wanted in self.params.exported_steps if wanted <= step}
        return {wanted: path for wanted, path in found.items() if path is not None}

    def has_export(self, step: int, manifest: CheckpointManifest) -> bool:
        """Whether the model of one of `export_steps` is here, or in the mirror with this checkpoint."""
        return self.exported(step) is not None or (bool(self.mirror.url) and step in manifest.exports)

    def _pull_exports(self, manifest: CheckpointManifest, also_those_here: bool) -> None:
        """Take from the mirror what a checkpoint names: the same steps may have been computed otherwise here."""
        for step in self.params.exported_steps:
            if (files := manifest.exports.get(step)) and (also_those_here or not self.exported(step)):
                with atomic_folder(self.export_path(step)) as folder:
                    self.mirror.pull_export(files, folder)

    def shared_steps(self, max_steps: int) -> int:
        """Up to which step a run of `max_steps` computes the same as this one (see `TrainParams.shared_steps`)."""
        if max_steps == self.params.max_steps:
            return max_steps
        return min(self.params.shared_steps(steps) for steps in (max_steps, self.params.max_steps))

    def _all(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("step-*") if not path.name.endswith(".partial"))

    def latest(self, fits: Callable[[CheckpointManifest], bool]) -> Path | None:
        """The newest intact checkpoint that fits, of those here and in the mirror. The main process chooses.

        Raises UserError where the mirror cannot be read and none here fits: the run would start afresh.
        """

        def choose() -> Path | None:
            try:
                return self._newest(fits, self.mirror.names())
            except UserError as error:
                path = self._newest(fits, mirrored=[])
                if path is None:
                    raise type(error)(
                        f"{error}; without it the run would start afresh: run the same command again when that is "
                        f"mended, or unset {MIRROR}"
                    ) from None
                print(f"warning: {error}; the run continues from what is here", flush=True)
                return path

        return on_main(self.accelerator, choose)

    def _newest(self, fits: Callable[[CheckpointManifest], bool], mirrored: list[str]) -> Path | None:
        here = {path.name for path in self._all()}
        for name in sorted({*here, *mirrored}, reverse=True):
            path = self.folder / name
            if name in here:
                if problem := fault(path):
                    print(f"warning: {path} is skipped: {problem}", flush=True)
                elif fits(manifest := read_manifest(path)):
                    self._pull_exports(manifest, also_those_here=False)
                    return path
            take = partial(self._pull_exports, also_those_here=True)
            if name in mirrored and self.mirror.pull(path, fits, take):
                return path
        return None

    def load(self, path: Path, model: nn.Module, optimizers: Optimizers) -> TrainingProgress:
        """Load a checkpoint's state into the model and the optimizers, on any number of processes.

        Raises UserError where it is not the state of such a model and such optimizers: their code has changed.
        """
        state = _state(model, optimizers)
        if found := misfit(path, state["model"]):
            raise UserError(f"{path}: of another model than this code builds ({found}); unset {CONTINUE}")
        try:
            load(state, storage_reader=FileSystemReader(path), planner=DataOnlyPlanner(), no_dist=self._alone)
        except CheckpointException as error:
            cause = first_line(next(iter(error.failures.values()))[0])
            raise UserError(f"{path}: not the state that this code saves ({cause}); unset {CONTINUE}") from None
        set_state_dict(model, list(optimizers), model_state_dict=state["model"], optim_state_dict=state["optimizers"])
        manifest = read_manifest(path)
        self.history = History(manifest.sessions, manifest.contents)
        return manifest


@cache
def file_hashes(folder: Path, written_ns: int) -> dict[str, str]:
    """The sha256 of the files of a folder that was written at a time, by their names."""
    return {file.name: file_sha256(file) for file in sorted(folder.iterdir())}


def _state(model: nn.Module, optimizers: Optimizers) -> dict[str, Any]:
    weights, optimizer_state = get_state_dict(model, list(optimizers))
    return {"model": weights, "optimizers": optimizer_state}
