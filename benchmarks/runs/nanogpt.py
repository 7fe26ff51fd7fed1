"""nanoGPT's model and step, from a checkout given by path, at the size of the `train` section."""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from stages.train.compute.data.rows import Rows
from stages.train.params import TrainParams


def nanogpt_step(
    folder: Path,
    params: TrainParams,
    vocab_size: int,
    batches: Sequence[Rows],
    device: torch.device,
    *,
    bf16: bool,
    fused: bool,
    compiled: bool,
) -> Callable[[], None]:
    """nanoGPT's own model in fp32 and its optimizer, in its own loop's order; on a GPU that optimizer is fused."""
    specification = importlib.util.spec_from_file_location("nanogpt_model", folder / "model.py")
    if specification is None or specification.loader is None:
        raise SystemExit(f"--nanogpt {folder}: no model.py there")
    module: Any = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    sizes = {name: params.model[name] for name in ("n_layer", "n_head", "n_embd")}
    config = module.GPTConfig(block_size=params.sequence_length, vocab_size=vocab_size, dropout=0.0, **sizes)
    model = module.GPT(config).to(device)
    optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), device.type)
    if fused:
        optimizer = torch.optim.AdamW(optimizer.param_groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
    forward: Any = torch.compile(model, dynamic=False) if compiled else model
    ready = [(torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)) for batch in batches]

    def step() -> None:
        for inputs, targets in ready:
            on_device = [tensor.to(device, non_blocking=True) for tensor in (inputs, targets)]
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
                _, loss = forward(*on_device)
            (loss / len(ready)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
