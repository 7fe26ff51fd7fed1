"""Checkpoints that a crash at any instant cannot spoil, written while training goes on.

    .parrotflow/checkpoints/FINGERPRINT/step-00000100/
        __0_0.distcp ...   sharded state (torch.distributed.checkpoint), a file per process
        NAME.tsv           the curves so far
        manifest.json      the step, and the sha256 of every file; written last

The state is copied, and a thread writes the copy under another name, flushes it to the disk, gives it its manifest and
renames it; older checkpoints go only afterwards. One that is incomplete or damaged is passed over with a warning.
"""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from stages.runtime.atomic import atomic_write, flush_to_disk
from stages.runtime.hashes import file_sha256
from stages.train.checkpoint.mirror import Mirror
from stages.train.monitoring.curves import Curves
from stages.train.optim.optimizer import Optimizers
from stages.train.params import TrainParams

CHECKPOINTS = Path(".parrotflow/checkpoints")
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands: what is not in the weights or the optimizer."""

    step: int
    """Optimizer steps done."""
    training_loss: float
    """Of the last step, nats per token."""
    max_steps: int
    """Steps that the run was to have when this was saved."""


class Checkpoints:
    """The checkpoints of one run, in a folder named by its fingerprint."""

    def __init__(self, fingerprint: str, accelerator: Accelerator, params: TrainParams, mirror: Mirror) -> None:
        self.folder = CHECKPOINTS / fingerprint
        self.accelerator = accelerator
        self.curves = Curves(self.folder / "curves")
        self.kept = params.checkpoints_kept
        self.milestones = params.milestone_every_steps
        self.mirror = mirror
        self._alone = accelerator.num_processes == 1
        # A group of its own: its messages must not meet those of the training.
        self._group = None if self._alone else dist.new_group(backend="gloo")
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None
        if accelerator.is_main_process:
            for partial in self.folder.glob("*.partial"):
                shutil.rmtree(partial, ignore_errors=True)
        accelerator.wait_for_everyone()

    def save(self, progress: Progress, model: nn.Module, optimizers: Optimizers) -> None:
        """Begin to write a checkpoint, after the one before is done. Every process calls this."""
        self.wait()
        place = self.folder / f"step-{progress.step:08d}"
        partial = self.folder / f"{place.name}.partial"
        partial.mkdir(parents=True, exist_ok=True)
        state = _state(model, optimizers)
        staged = async_save(state, checkpoint_id=partial, no_dist=self._alone, process_group=self._group)
        self._writing = self._thread.submit(self._finish, cast("Future[Any]", staged), partial, place, progress)

    def wait(self) -> None:
        """Wait until the last checkpoint is written, or could not be: training goes on without it."""
        if self._writing is None:
            return
        try:
            self._writing.result()
        except (OSError, CheckpointException) as error:
            causes = [str(failure[0]) for failure in getattr(error, "failures", {}).values()] or [str(error)]
            # Of a full disk torch often reports only what it stumbled over afterwards.
            free = f"{shutil.disk_usage(self.folder).free / 1e6:,.1f} MB are free on its disk"
            self.accelerator.print(f"warning: a checkpoint could not be written ({causes[0]}; {free}); the run goes on")
            if self.accelerator.is_main_process:
                for partial in self.folder.glob("*.partial"):
                    shutil.rmtree(partial, ignore_errors=True)
        self._writing = None

    def _finish(self, staged: "Future[Any]", partial: Path, place: Path, progress: Progress) -> None:
        staged.result()
        if not self.accelerator.is_main_process:
            return
        self.curves.copy_to(partial)
        files = sorted(path for path in partial.iterdir() if path.is_file())
        for file in files:
            flush_to_disk(file)
        manifest = asdict(progress) | {"sha256": {file.name: file_sha256(file) for file in files}}
        atomic_write(partial / MANIFEST, json.dumps(manifest, indent=1))
        shutil.rmtree(place, ignore_errors=True)
        partial.rename(place)
        flush_to_disk(self.folder)
        # What lies behind this step is of a longer or shorter run that this one did not go on from.
        for old in [done for done in self._complete() if done.name <= place.name][: -self.kept]:
            if not self._is_milestone(old):
                shutil.rmtree(old, ignore_errors=True)
        self.mirror.push(place)

    def export_place(self, step: int) -> Path:
        """Where the model of one of `export_steps` waits for the end of the run."""
        return self.folder / "exports" / f"step-{step:08d}"

    def _is_milestone(self, place: Path) -> bool:
        return self.milestones is not None and int(place.name.removeprefix("step-")) % self.milestones == 0

    def _complete(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("step-*") if not path.name.endswith(".partial"))

    def latest(self, fits: Callable[[Progress], bool]) -> Path | None:
        """The newest fitting checkpoint whose files are those of its manifest; from the mirror where none is here."""
        if self.accelerator.is_main_process and not self._complete():
            self.mirror.pull(self.folder)
        self.accelerator.wait_for_everyone()
        for place in reversed(self._complete()):
            if fault := _fault(place):
                self.accelerator.print(f"warning: {place} is passed over: {fault}")
            elif fits(read_progress(place)):
                return place
        return None

    def load(self, place: Path, model: nn.Module, optimizers: Optimizers) -> Progress:
        """Put a checkpoint's state into the model and the optimizers, on any number of processes."""
        state = _state(model, optimizers)
        load(state, checkpoint_id=place, no_dist=self._alone)
        set_state_dict(model, list(optimizers), model_state_dict=state["model"], optim_state_dict=state["optimizers"])
        return read_progress(place)


def read_progress(place: Path) -> Progress:
    """Where a checkpoint stands."""
    values = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
    return Progress(values["step"], values["training_loss"], values["max_steps"])


def _state(model: nn.Module, optimizers: Optimizers) -> dict[str, Any]:
    weights, optimizer_state = get_state_dict(model, list(optimizers))
    return {"model": weights, "optimizers": optimizer_state}


def _fault(place: Path) -> str:
    try:
        expected = json.loads((place / MANIFEST).read_text(encoding="utf-8"))["sha256"]
    except (OSError, ValueError, KeyError):
        return f"no readable {MANIFEST}"
    for name, sha256 in expected.items():
        file = place / name
        if not file.is_file() or file_sha256(file) != sha256:
            return f"{name} is missing or damaged"
    return ""
