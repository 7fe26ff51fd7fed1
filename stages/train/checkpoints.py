"""Checkpoints that a crash at any instant cannot spoil.

    .parrotflow/checkpoints/FINGERPRINT/step-00000100/
        __0_0.distcp ...   sharded state (torch.distributed.checkpoint), a file per process
        manifest.json      the step, and the sha256 of every file; written last

A checkpoint is written under another name, flushed to the disk, given its manifest, and renamed; older ones go only
afterwards. One that is incomplete or damaged is passed over with a warning.
"""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from stages.formats.atomic import flush_to_disk, write_whole_file
from stages.formats.hashes import file_sha256
from stages.train.optimizer import Optimizers

CHECKPOINTS = Path(".parrotflow/checkpoints")
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands: what is not in the weights or the optimizer."""

    step: int
    """Optimizer steps done."""
    training_loss: float
    """Of the last step, nats per token."""


class Checkpoints:
    """The checkpoints of one run, in a folder named by its fingerprint."""

    def __init__(self, fingerprint: str, accelerator: Accelerator, kept: int) -> None:
        self.folder = CHECKPOINTS / fingerprint
        self.accelerator = accelerator
        self.kept = kept

    def save(self, progress: Progress, model: nn.Module, optimizers: Optimizers) -> None:
        """Write a checkpoint; it counts once its final name exists. Every process calls this."""
        place = self.folder / f"step-{progress.step:08d}"
        partial = self.folder / f"{place.name}.partial"
        if self.accelerator.is_main_process:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        self.accelerator.wait_for_everyone()
        dcp.save(_state(model, optimizers), checkpoint_id=partial, no_dist=self.accelerator.num_processes == 1)
        if self.accelerator.is_main_process:
            self._commit(partial, place, progress)
        self.accelerator.wait_for_everyone()

    def _commit(self, partial: Path, place: Path, progress: Progress) -> None:
        files = sorted(path for path in partial.iterdir() if path.is_file())
        for file in files:
            flush_to_disk(file)
        manifest = asdict(progress) | {"sha256": {file.name: file_sha256(file) for file in files}}
        write_whole_file(partial / MANIFEST, json.dumps(manifest, indent=1))
        shutil.rmtree(place, ignore_errors=True)
        partial.rename(place)
        flush_to_disk(self.folder)
        for old in self._complete()[: -self.kept]:
            shutil.rmtree(old, ignore_errors=True)

    def _complete(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("step-*") if not path.name.endswith(".partial"))

    def latest(self) -> Path | None:
        """The newest checkpoint whose files are those of its manifest."""
        for place in reversed(self._complete()):
            if fault := _fault(place):
                self.accelerator.print(f"warning: {place} is passed over: {fault}")
            else:
                return place
        return None

    def load(self, place: Path, model: nn.Module, optimizers: Optimizers) -> Progress:
        """Put a checkpoint's state into the model and the optimizers, on any number of processes."""
        state = _state(model, optimizers)
        dcp.load(state, checkpoint_id=place, no_dist=self.accelerator.num_processes == 1)
        set_state_dict(model, list(optimizers), model_state_dict=state["model"], optim_state_dict=state["optimizers"])
        manifest = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
        return Progress(step=manifest["step"], training_loss=manifest["training_loss"])


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
