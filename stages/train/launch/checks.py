"""What can be known to be wrong before a worker starts."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from accelerate.utils.other import is_port_in_use
from transformers import PreTrainedConfig

from stages.formats.tokens import TokenStore
from stages.runtime.atomic import file_sha256
from stages.runtime.entry import UserError
from stages.runtime.launch import LaunchConfig, device_count, require_devices
from stages.train.params import TrainParams

TOKENS_AT_ONCE = 2**24
"""Token ids in memory while a store is read through."""


def check_machine(config: LaunchConfig) -> None:
    """Raise UserError where this machine has too few GPUs for the launch, or something else on its port."""
    require_devices(config)
    if config.port is not None and is_port_in_use(config.port):
        raise UserError(
            f"{config.path}: main_process_port = {config.port} is in use on this machine; end what holds it "
            "(a run before this one?), or set another port on every machine"
        )


def note_idle_devices(config: LaunchConfig) -> Iterator[str]:
    """A line where GPUs of this machine have no process."""
    own, found = config.processes // config.machines, device_count()
    if not config.on_cpu and own < found:
        yield (
            f"note: {found - own} of {found} GPUs of this machine stay idle: {config.path} starts {own} process"
            f"{'es' if own > 1 else ''} here; for all of them copy launch/ddp.yaml (or fsdp2.yaml), set num_processes: "
            f"{found} and name it by PARROTFLOW_LAUNCH"
        )


def check_batch(params: TrainParams, config: LaunchConfig) -> None:
    """Raise UserError where the global batch cannot be divided evenly, or the deterministic sum has no full tree."""
    if params.global_batch_size % config.processes:
        raise UserError(
            f"params.yaml: train.global_batch_size = {params.global_batch_size}: {config.path} starts "
            f"{config.processes} processes, and each takes the same number of sequences; "
            "use a multiple, or start fewer processes"
        )
    if size := params.deterministic_micro_batch_size:
        if config.sharded:
            raise UserError(
                f"params.yaml: train.deterministic_micro_batch_size = {size}: {config.path} shards the model (FSDP), "
                "whose gradients are summed by the backend; set it to null, or launch data parallel (ddp, cpu_2)"
            )
        if params.global_batch_size % size or not _is_power_of_two(params.global_batch_size // size):
            raise UserError(
                f"params.yaml: train.deterministic_micro_batch_size = {size}: train.global_batch_size = "
                f"{params.global_batch_size} must be 1, 2, 4, 8, ... times that"
            )
        if not _is_power_of_two(config.processes) or config.processes > params.global_batch_size // size:
            raise UserError(
                f"{config.path} starts {config.processes} processes: with "
                f"train.deterministic_micro_batch_size = {size} it can be 1, 2, 4, ... up to "
                f"{params.global_batch_size // size}"
            )


def check_store(store: TokenStore, params: TrainParams, tokenizer: Path) -> None:
    """Raise UserError where a split is corrupt, of another tokenizer, or shorter than one sequence."""
    store.verify()
    if file_sha256(tokenizer / "tokenizer.json") != store.manifest.tokenizer_sha256:
        raise UserError(f"{store.folder}: made with another tokenizer than {tokenizer}; run `dvc repro tokenize`")
    if (largest := largest_id(store)) >= store.manifest.vocab_size:
        raise UserError(
            f"{store.folder}: holds the token id {largest}, the vocabulary has {store.manifest.vocab_size} entries; "
            "run `dvc repro -f tokenize`"
        )
    tokens = store.manifest.tokens
    if tokens < params.sequence_length:
        raise UserError(
            f"{store.folder}: {tokens} tokens are fewer than one sequence "
            f"(train.sequence_length = {params.sequence_length}); collect more documents or lower it"
        )


def largest_id(store: TokenStore) -> int:
    """The largest token id in a store; -1 where it is empty."""
    tokens = store.manifest.tokens
    spans = ((start, min(start + TOKENS_AT_ONCE, tokens)) for start in range(0, tokens, TOKENS_AT_ONCE))
    return max((int(store.read(start, stop).max()) for start, stop in spans), default=-1)


def note_dropout(params: TrainParams, config: PreTrainedConfig) -> Iterator[str]:
    """A line where dropout makes the result depend on how the run is launched."""
    names = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout", "hidden_dropout", "dropout")
    used = [name for name in names if getattr(config, name, 0)]
    if used and params.deterministic_micro_batch_size is None:
        yield (
            f"note: train.model.{used[0]} > 0: dropout masks depend on the size of micro-batches, so other hardware "
            "gives another result; train.deterministic_micro_batch_size fixes them"
        )


def note_padded_vocabulary(source: Path, vocabulary_size: int) -> Iterator[str]:
    """A line where the model in `source` has rows that are cut off: they are padding, or the tokenizer is another."""
    # A config that cannot be read is refused when it is loaded.
    with suppress(OSError, ValueError, AttributeError, TypeError):
        rows = json.loads((source / "config.json").read_bytes()).get("vocab_size") or 0
        if rows > vocabulary_size:
            yield (
                f"note: train.start_from: its vocabulary is cut from {rows} entries to the tokenizer's "
                f"{vocabulary_size}: right if the tokenizer is the model's own (tokenizer.kind: existing)"
            )


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
