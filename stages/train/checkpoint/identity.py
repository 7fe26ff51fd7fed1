"""The identity of a training run: everything that its weights depend on, and the fingerprint of that.

It covers the computing parameters, the training tokens, the tokenizer, the libraries, and the code of `compute/`
without comments; but not the machine, the held-out tokens or other modules.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from stages.formats.model_folder import TOKENIZER, TOKENIZER_JSON
from stages.formats.reports import read_json
from stages.formats.tokens import STORE_MANIFEST, TokenStore
from stages.runtime.atomic import file_sha256
from stages.runtime.errors import UserError
from stages.runtime.hub import HUB_COMMIT
from stages.runtime.section import as_yaml, flatten
from stages.runtime.stage_code import computing_sha256, pinned
from stages.train.checkpoint.manifest import CHECKPOINT_MANIFEST, IDENTITY, read_manifest
from stages.train.compute.model.source import IDENTIFYING_FILES, source_folder
from stages.train.compute.params import ComputingParams
from stages.train.compute.processes import count, on_main

TRAIN_LIBRARIES = ("torch", "transformers", "accelerate", "numpy")


def identity(params: ComputingParams, store: TokenStore) -> dict[str, Any]:
    """Everything that the weights depend on, by name, except what `precision: auto` resolves to (`precision_of_run`).

    Raises UserError if `start_from` does not exist.
    """
    pins, start = pinned(), {}
    if params.start_checkpoint:
        check_start(params.start_checkpoint, params.model_dump(include=set(ComputingParams.model_fields)))
        start = {"start_from": file_sha256(params.start_checkpoint / CHECKPOINT_MANIFEST)}
    elif params.start_model:
        start = {"start_from": source_sha256(params.start_model)}
    return start | {
        "train": params.model_dump(mode="json", include=set(ComputingParams.model_fields)),
        "data": {store.folder.as_posix(): file_sha256(store.folder / STORE_MANIFEST)},
        "vocabulary": vocabulary_sha256(),
        "library": {name: pins[name][1] for name in TRAIN_LIBRARIES},
        "code": computing_sha256("stages.train"),
    }


def source_sha256(start_from: str) -> str:
    """Identifies the model's content: a Hub commit, or the sha256 of the folder's weights and config.json."""
    if commit := HUB_COMMIT.fullmatch(start_from):
        return commit["commit"]
    folder = source_folder(start_from)
    files = sorted(file for pattern in IDENTIFYING_FILES for file in folder.glob(pattern))
    lines = [f"{file.name} {file_sha256(file)}" for file in files]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def held_out_sha256(store: TokenStore, sequences: int) -> str:
    """Identifies the held-out sequences."""
    return fingerprint({"tokens": file_sha256(store.folder / STORE_MANIFEST), "sequences": sequences})


def check_start(checkpoint: Path, train: Mapping[str, Any]) -> None:
    """Raise UserError if the run with these parameters cannot start from a checkpoint.

    It is missing, no step remains, or its run had another vocabulary or number of tokens per step.
    """
    what = f"params.yaml: train.start_from = '{checkpoint}'"
    try:
        step = read_manifest(checkpoint).step
        run = json.loads((checkpoint.parent / IDENTITY).read_bytes())
    except (OSError, ValueError):
        known = ", ".join(path.name for path in sorted(checkpoint.parent.glob("step-*"))) or "none"
        raise UserError(f"{what}: no such checkpoint; {checkpoint.parent} has: {known}") from None
    if step >= train["max_steps"]:
        raise UserError(f"{what}: no step follows {step}, train.max_steps = {train['max_steps']}; raise max_steps")
    for name in ("global_batch_size", "sequence_length"):
        if (before := run.get("train", {}).get(name)) != train[name]:
            raise UserError(
                f"{what}: its {step} steps were trained with train.{name} = {before}, not {train[name]}, so the run's "
                f"tokens could not be counted; keep {before}, or start from the weights in that run's model folder"
            )
    if run.get("vocabulary") != vocabulary_sha256():
        raise UserError(
            f"{what}: its run had another tokenizer (or did not record it), so its ids may mean different "
            "text now; train with that tokenizer (tokenizer.kind: existing), or from random weights"
        )


def check_vocabulary(start_from: str) -> Iterator[str]:
    """Yield a note if the start model's ids cannot be compared, or if its generation_config.json is ignored.

    Raises UserError if the two tokenizers have different tokens for an id.
    """
    folder = source_folder(start_from)
    theirs, ours = tokens_by_id(folder), tokens_by_id(TOKENIZER)
    if (folder / "generation_config.json").is_file():
        yield f"note: train.start_from: the generation_config.json of {start_from} is ignored"
    if not theirs:
        yield f"note: train.start_from: {start_from} has no {TOKENIZER_JSON}: its ids are assumed to be the tokenizer's"
        return
    for number in sorted(theirs.keys() & ours.keys()):
        if theirs[number] != ours[number]:
            raise UserError(
                f"params.yaml: train.start_from = {start_from!r}: it has another tokenizer (id {number} is "
                f"{theirs[number]!r} there and {ours[number]!r} in {TOKENIZER}); use it (tokenizer.kind: existing)"
            )


def vocabulary_sha256() -> str:
    """Identifies the tokenizer's ids and tokens, independent of the file's layout."""
    return hashlib.sha256(json.dumps(sorted(tokens_by_id(TOKENIZER).items())).encode()).hexdigest()


def tokens_by_id(folder: Path) -> dict[int, str]:
    """The tokens of a folder's tokenizer.json by id; empty without one. Raises UserError for a damaged file.

    It is read as JSON: an import of tokenizers would make the library's version part of the training.
    """
    file = folder / TOKENIZER_JSON
    try:
        content = read_json(file)
        vocabulary = content["model"]["vocab"]
        if isinstance(vocabulary, list):  # a unigram model: tokens with their scores
            vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
        tokens = {number: token for token, number in vocabulary.items()}
        return tokens | {token["id"]: token["content"] for token in content.get("added_tokens") or ()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{file}: the library tokenizers cannot read it") from None


def fingerprint(values: dict[str, Any]) -> str:
    """16 hex digits that identify `values`."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def identity_changes(recorded: Path, values: dict[str, Any]) -> list[str]:
    """The differences from the identity in a file, one line each."""
    try:
        before, now = flatten(json.loads(recorded.read_bytes())), flatten(json.loads(json.dumps(values)))
    except (ValueError, AttributeError):
        return [f"{recorded} is damaged"]  # only messages use it
    return [
        f"{key}: {as_yaml(before.get(key, 'absent'))} -> {as_yaml(now.get(key, 'absent'))}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]


def shared_identity(params: ComputingParams, accelerator: Accelerator, store: TokenStore) -> dict[str, Any]:
    """The run's identity. Every process computes it; raises UserError if they differ."""
    here = identity(params, store)
    run = on_main(accelerator, lambda: here)
    if others := accelerator.num_processes - count(accelerator, fingerprint(here) == fingerprint(run)):
        raise UserError(
            f"train: {others} of {accelerator.num_processes} processes have other parameters, data, libraries or code "
            "than the main one; every machine needs the same"
        )
    return run
