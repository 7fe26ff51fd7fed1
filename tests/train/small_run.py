"""A small training project: real tokenizer, real token stores, a model of a few thousand weights."""

import json
import multiprocessing
import os
import runpy
import shutil
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import transformers.models.gpt2.modeling_gpt2  # noqa: F401  # here once, and not in each forked process
import yaml
from accelerate.state import AcceleratorState, GradientState
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor

from stages.formats.tokens import Manifest, TokenStore
from stages.runtime.atomic import file_sha256
from stages.tokenize.encode import smallest_dtype, write_token_shard
from stages.tokenizer.train import save_trained
from stages.train import worker
from stages.train.compute.step import Trainer
from stages.train.monitoring.params import MonitoringParams
from stages.train.params import TrainParams
from tests.small_project import ROOT, SECTIONS, changed

# Fake tensors, as the forecast makes, register a device. If autograd starts after that, it refuses to run in a fork.
torch.ones(1, requires_grad=True).backward()

COMMAND = (sys.executable, "-m", "stages.train")


def params(**changes: Any) -> dict[str, Any]:
    """The section `train` with some values changed: `optimizer__name="adamw"` sets optimizer.name."""
    return changed(SECTIONS["train"], **changes)


def monitoring(**changes: Any) -> MonitoringParams:
    """The section `monitoring` with some values changed."""
    return MonitoringParams.model_validate(SECTIONS["monitoring"] | changes)


def write_params(folder: Path, **changes: Any) -> None:
    """Write params.yaml: each change goes to the section that has such a parameter."""
    own = {name: changes.pop(name) for name in SECTIONS["monitoring"] if name in changes}
    sections = {"train": params(**changes), "monitoring": monitoring(**own).model_dump(mode="json")}
    (folder / "params.yaml").write_text(yaml.safe_dump(sections), encoding="utf-8")


def write_store(
    folder: Path,
    documents: list[str],
    tokenizer: Tokenizer,
    tokenizer_file: Path,
    source_of: Callable[[int], str] = lambda number: "s",
) -> TokenStore:
    """Tokenize documents into a store of one shard."""
    folder.mkdir(parents=True)
    encoded = [tokenizer.encode(text).ids for text in documents]
    size, eos = tokenizer.get_vocab_size(), tokenizer.token_to_id("<|endoftext|>")
    dtype = smallest_dtype(size)
    ids = np.array([number for document in encoded for number in document], dtype=np.uint32)
    lengths = np.array([len(document) for document in encoded], dtype=np.int64)
    infos = [
        {"id": str(number), "source": source_of(number), "path": f"f{number}.py", "bytes": len(text.encode())}
        for number, text in enumerate(documents)
    ]
    shard = write_token_shard(folder, "s000", ids, lengths, infos, eos, dtype)
    manifest = Manifest(dtype, size, eos, file_sha256(tokenizer_file), "tokenizers", (shard,))
    (folder / "manifest.json").write_text(manifest.to_json(), encoding="utf-8")
    return TokenStore(folder)


def documents(count: int, seed: int) -> list[str]:
    """Texts with something to learn: sums that are right."""
    random = np.random.default_rng(seed)
    pairs = random.integers(0, 100, size=(count, 6, 2))
    return ["".join(f"add({a}, {b}) == {a + b}\n" for a, b in pair) for pair in pairs.tolist()]


def write_project(folder: Path, source_of: Callable[[int], str] = lambda number: "s", **changes: Any) -> Path:
    """A folder in which `python -m stages.train` runs. Returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=sorted(alphabet))
    tokenizer.train_from_iterator(documents(40, seed=1), trainer)
    (folder / "data/tokenizer").mkdir(parents=True)
    save_trained(tokenizer, folder / "data/tokenizer")
    saved = folder / "data/tokenizer/tokenizer.json"
    write_store(folder / "data/tokens/train", documents(60, seed=2), tokenizer, saved, source_of)
    write_store(folder / "data/tokens/validation", documents(12, seed=3), tokenizer, saved)
    shutil.copyfile(ROOT / "requirements.lock", folder / "requirements.lock")
    shutil.copytree(ROOT / "deploy/launch", folder / "deploy/launch")
    write_params(folder, **changes)
    return folder


def swap_two_tokens(tokenizer_json: Path) -> None:
    """Make another tokenizer of the same size: two ids stand for each other's bytes."""
    content = json.loads(tokenizer_json.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    tokenizer_json.write_text(json.dumps(content), encoding="utf-8")


def environment(**changes: str) -> dict[str, str]:
    """The environment of a run: the project's code, no accelerate config of the machine's user."""
    own = {"PYTHONPATH": str(ROOT), "PARROTFLOW_LAUNCH": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **own, **changes}


def start(folder: Path, command: Sequence[str] = COMMAND, **variables: str) -> "subprocess.Popen[str]":
    """Start `python -m stages.train`."""
    return subprocess.Popen(
        command, cwd=folder, env=environment(**variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def fork(folder: Path, **variables: str) -> "subprocess.Popen[str]":
    """`start` by a fork of this process, which has imported what the command imports: 5 s less to wait for.

    Of `python -m stages.train` only the start of Python is left out: the launcher and its workers are new processes.
    """

    def command() -> None:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # among them the pipe by which Popen waits for an `exec`
        os.environ.update(environment(**variables))
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        code: object = 1
        try:
            runpy.run_module("stages.train", run_name="__main__")
            code = 0
        except SystemExit as ended:
            code = ended.code
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 0)

    return subprocess.Popen(
        ["fork"],
        cwd=folder,
        preexec_fn=command,  # noqa: PLW1509
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(
    folder: Path, expected_code: int = 0, begin: Callable[..., "subprocess.Popen[str]"] = start, **variables: str
) -> str:
    """Run it to its end, begun by `start` or `fork`, and return what it said."""
    process = begin(folder, **variables)
    said, _ = process.communicate()
    assert process.returncode == expected_code, said
    return said


@contextmanager
def held_port() -> Iterator[int]:
    """A port that no other program is given meanwhile: bound and not listening, so that a worker can listen on it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


def run_workers(
    folder: Path, processes: int, main: Callable[[], None] = worker.main, expected_code: int = 0, **variables: str
) -> None:
    """Run the workers as a launcher would start them, forked from this process: torch is imported already."""
    context = multiprocessing.get_context("fork")
    with held_port() as port:
        workers = [
            context.Process(target=_worker, args=(main, folder, rank, processes, str(port), variables))
            for rank in range(processes)
        ]
        for process in workers:
            process.start()
        for process in workers:
            process.join()
    assert [process.exitcode for process in workers] == [expected_code] * processes


def _worker(
    main: Callable[[], None], folder: Path, rank: int, processes: int, port: str, variables: dict[str, str]
) -> None:
    os.chdir(folder)
    os.environ.update(
        {"ACCELERATE_USE_CPU": "true", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "HF_HUB_OFFLINE": "1"}
    )
    if processes > 1:
        os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)})
    os.environ.update(variables)
    # A worker of accelerate's is a process of its own: it knows nothing of what this process's tests were.
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    main()


def stopped_at(step: int) -> Callable[[], None]:
    """The worker, asked to stop so that it saves after `step` (2 or more) and exits with `EXIT_CONTINUE`."""

    def main() -> None:
        take_step = Trainer.step

        def asked(trainer: Trainer, number: int, batches: Any, _: Any) -> Any:
            return take_step(trainer, number, batches, lambda: number == step - 2)  # votes are read a step later

        with patch.object(Trainer, "step", asked):
            worker.main()

    return main


EPSILON = 0.01
"""Adam's, to compare weights. With the usual 1e-8 it divides rounding errors by rounding errors: the gradient of a bias
of attention's keys is nothing else, so how far its steps differ depends on the processor."""


def require_equal_to_rounding(ours: dict[str, Tensor], theirs: dict[str, Tensor], values: TrainParams) -> None:
    """Require that weights differ by no more than two orders of the same sums can make them differ in fp32.

    In each step a weight is rounded, and so are the terms of its gradient, which are clipped to `max_gradient_norm`.
    Adam divides by `EPSILON` or more. Each of Muon's five rounds multiplies a small singular value by up to 3.4445.
    """
    assert values.optimizer.epsilon == EPSILON
    growth = 3.4445**5 if values.optimizer.name == "muon" else 1 / EPSILON
    relative = values.max_steps * torch.finfo(torch.float32).eps
    absolute = relative * max(values.optimizer.peaks.values()) * values.max_gradient_norm * growth
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], rtol=relative, atol=absolute, msg=name)


def copy_of(project: Path, to: Path) -> Path:
    """The same inputs, nothing computed."""
    return Path(shutil.copytree(project, to, ignore=shutil.ignore_patterns(".parrotflow", "model", "reports")))
