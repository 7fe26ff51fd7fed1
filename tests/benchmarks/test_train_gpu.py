"""The measurement on a GPU runs to its end, on a CPU with a tiny model: nothing of it is tried first on a machine lent
for an hour."""

import multiprocessing
import os
import re
import sys
from pathlib import Path

import pytest

from benchmarks import train_gpu
from stages.train.compute.step import Trainer

pytestmark = pytest.mark.acceptance


NANOGPT = '''
"""A stand-in with the interface of nanoGPT's model.py."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass
class GPTConfig:
    block_size: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, inputs, targets):
        logits = self.head(self.embedding(inputs))
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def configure_optimizers(self, weight_decay, learning_rate, betas, device_type):
        return torch.optim.AdamW(self.parameters(), lr=learning_rate, betas=betas, weight_decay=weight_decay)
'''


def measure(log: Path, *arguments: str) -> None:
    """In a process of its own: a worker's settings are those of the whole process."""
    sys.stdout = log.open("w", encoding="utf-8")
    os.environ["ACCELERATE_USE_CPU"] = "true"
    steps = 0
    own_step = Trainer.step

    def counted(self: Trainer, *arguments: object) -> object:
        nonlocal steps
        steps += 1
        return own_step(self, *arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", counted)
        train_gpu.main(arguments)
    print(f"{steps} steps of the product's", flush=True)


@pytest.mark.parametrize("options", [(), ("--deterministic",)])
def test_all_of_it_runs_on_a_cpu_with_a_tiny_model(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "model.py").write_text(NANOGPT, encoding="utf-8")
    arguments = ("--try-on-cpu", "--eager", "--micro-batch", "2", "--nanogpt", str(tmp_path), *options)
    process = multiprocessing.get_context("fork").Process(target=measure, args=(tmp_path / "log", *arguments))
    process.start()
    process.join()
    said = (tmp_path / "log").read_text(encoding="utf-8")
    assert process.exitcode == 0, said
    assert re.search(r"micro-batches of 2 x 64 tokens: speed: [\d,.]+ tokens/s", said)
    assert re.search(r"MFU: [\d,.]+ %", said)
    assert f"{train_gpu.WARM_UP_STEPS + 3} steps of the product's" in said
    assert "not recorded" in said
