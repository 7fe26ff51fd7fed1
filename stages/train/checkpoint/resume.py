"""What a run of training is, and where it starts: at its newest checkpoint, at that of `start_from`, or at step 0.

A run continues itself and nothing else. Its fingerprint covers the parameters, the data, the tokenizer, the libraries
and the code of the stage without comments and `stages/runtime`, and nothing of the machine. Another run, such as a
longer one or one after a change of the code, starts from a checkpoint by `train.start_from`.
"""

import hashlib
import json
import math
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from stages.formats.model_folder import TOKENIZER, TOKENIZER_JSON
from stages.formats.reports import read_json
from stages.formats.tokens import TokenStore
from stages.runtime.atomic import atomic_write, file_sha256
from stages.runtime.errors import UserError
from stages.runtime.section import as_yaml, flatten
from stages.runtime.stage_code import computing_sha256, pinned
from stages.train.checkpoint.checkpoints import Checkpoints
from stages.train.checkpoint.manifest import (
    CHECKPOINT_MANIFEST,
    IDENTITY,
    History,
    TrainingProgress,
    fault,
    read_manifest,
)
from stages.train.model.build import source_folder, source_sha256
from stages.train.model.loss import CausalLoss
from stages.train.optim.optimizers import Optimizers
from stages.train.parallel import on_main
from stages.train.params import TrainParams

TRAIN_LIBRARIES = ("torch", "transformers", "accelerate", "numpy")


def identity(params: TrainParams, stores: list[TokenStore]) -> dict[str, Any]:
    """Everything that the weights depend on, by name. Raises UserError if there is nothing at `start_from`."""
    pins, start = pinned(), {}
    if params.start_checkpoint:
        check_start(params.start_checkpoint, params.max_steps)
        start = {"start_from": file_sha256(params.start_checkpoint / CHECKPOINT_MANIFEST)}
    elif params.start_model:
        start = {"start_from": source_sha256(params.start_model)}
    return start | {
        "train": params.model_dump(mode="json", exclude={"export_steps"}),
        "data": {store.folder.as_posix(): file_sha256(store.folder / "manifest.json") for store in stores},
        "vocabulary": vocabulary_sha256(),
        "library": {name: pins[name][1] for name in TRAIN_LIBRARIES},
        "code": computing_sha256("stages.train"),
    }


def check_start(checkpoint: Path, max_steps: int) -> None:
    """Raise UserError if `start_from` names no checkpoint, one of another vocabulary, or one that leaves no step."""
    what = f"params.yaml: train.start_from = '{checkpoint}'"
    try:
        step = read_manifest(checkpoint).step
        run = json.loads((checkpoint.parent / IDENTITY).read_bytes())
    except (OSError, ValueError):
        known = ", ".join(path.name for path in sorted(checkpoint.parent.glob("step-*"))) or "none"
        raise UserError(f"{what}: no such checkpoint; in {checkpoint.parent} there are: {known}") from None
    if step >= max_steps:
        raise UserError(f"{what}: no step follows {step}, train.max_steps = {max_steps}; raise max_steps")
    if run.get("vocabulary") != vocabulary_sha256():
        raise UserError(
            f"{what}: its run had another tokenizer (or did not record it), so the ids that it learnt may mean other "
            "text now; train with that tokenizer (tokenizer.kind: existing), or from random weights"
        )


def check_vocabulary(start_from: str) -> Iterator[str]:
    """Yield a note if ids of the model that is continued cannot be compared, or if its generation_config is not taken.

    Raises UserError if the two tokenizers have different tokens for an id.
    """
    folder = source_folder(start_from)
    own, ours = tokens_by_id(folder), tokens_by_id(TOKENIZER)
    if (folder / "generation_config.json").is_file():
        yield f"note: train.start_from: the generation_config.json of {start_from} is not taken"
    if not own:
        yield f"note: train.start_from: {start_from} has no {TOKENIZER_JSON}: its ids are taken to be the tokenizer's"
        return
    for other in sorted(own.keys() & ours.keys()):
        if own[other] != ours[other]:
            raise UserError(
                f"params.yaml: train.start_from = {start_from!r}: its tokenizer is another one (id {other} is "
                f"{own[other]!r} there and {ours[other]!r} in {TOKENIZER}); use it (tokenizer.kind: existing)"
            )


def vocabulary_sha256() -> str:
    """Identifies what the tokenizer's ids mean, however its file is written."""
    return hashlib.sha256(json.dumps(sorted(tokens_by_id(TOKENIZER).items())).encode()).hexdigest()


def tokens_by_id(folder: Path) -> dict[int, str]:
    """The tokens of a folder's tokenizer.json by id; empty without one. Raises UserError for a damaged file.

    Read as JSON: by the library, its next version would count as a change of the training.
    """
    file = folder / TOKENIZER_JSON
    try:
        content = read_json(file)
        vocabulary = content["model"]["vocab"]
        if isinstance(vocabulary, list):  # of a unigram model: each token with its score
            vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
        tokens = {number: token for token, number in vocabulary.items()}
        return tokens | {token["id"]: token["content"] for token in content.get("added_tokens") or ()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{file}: no tokenizer of the library tokenizers") from None


def fingerprint(values: dict[str, Any]) -> str:
    """16 hex digits that name an identity."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def why_afresh(folder: Path, values: dict[str, Any]) -> str:
    """How this run differs from the newest other one here, and how to continue from that; empty if there is none."""
    others = [path for path in folder.parent.glob(f"*/{IDENTITY}") if path.parent != folder]
    newest = max(others, key=lambda path: path.stat().st_mtime_ns, default=None)
    if newest is None:
        return ""
    last = max(newest.parent.glob("step-*"), default=None)
    reason = f"this is another run than {newest.parent} ({'; '.join(identity_changes(newest, values))})"
    if last is not None:
        with suppress(UserError):
            check_start(last, sys.maxsize)
            reason += f"; to continue from its weights and optimizer state set train.start_from: {last}"
    return reason


def identity_changes(recorded: Path, values: dict[str, Any]) -> list[str]:
    """The differences from the identity in a file, a line each."""
    try:
        before, now = flatten(json.loads(recorded.read_bytes())), flatten(json.loads(json.dumps(values)))
    except (ValueError, AttributeError):
        return [f"{recorded} is damaged"]  # it only serves messages
    return [
        f"{key}: {as_yaml(before.get(key, 'absent'))} -> {as_yaml(now.get(key, 'absent'))}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]


def resume(
    checkpoints: Checkpoints, model: CausalLoss, optimizers: Optimizers, run: dict[str, Any]
) -> TrainingProgress:
    """Load the run's newest checkpoint or that of `start_from`; without either, say why. Every process calls this.

    Raises UserError if the checkpoint of `start_from` is damaged, or does not fit.
    """
    params, accelerator = checkpoints.params, checkpoints.accelerator
    own = checkpoints.latest()
    if accelerator.is_main_process:
        atomic_write(checkpoints.folder / IDENTITY, json.dumps(run, indent=1, sort_keys=True))
    path = own or params.start_checkpoint
    if path is None:
        if reason := why_afresh(checkpoints.folder, run):
            accelerator.print(f"starting afresh: {reason}")
        if accelerator.is_main_process:
            checkpoints.curves.restart()
        return TrainingProgress(step=0, training_loss=math.nan)
    if own is None and (problem := on_main(accelerator, lambda: fault(path))):
        raise UserError(f"params.yaml: train.start_from = '{path}': {problem}")
    manifest = checkpoints.load(path, model, optimizers)
    if own:
        checkpoints.history = History(manifest.sessions, manifest.contents)
    if accelerator.is_main_process:
        checkpoints.curves.restore(path)
    accelerator.print(f"continuing at step {manifest.step} of {params.max_steps}, from {path}")
    return TrainingProgress(step=manifest.step, training_loss=manifest.training_loss)
