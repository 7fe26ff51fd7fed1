"""Loss at equal tokens: our recipe compared with nanoGPT's, and how many tokens less Muon needs than AdamW.

    python -m benchmarks.optimizers [--nanogpt PATH] [--quick]

All sides train the GPT-2 of the preset gpt2_mini on the project's tokens in the same order, and are judged by bits per
byte on the same held-out sequences. AdamW and nanoGPT take the best of several learning rates and warm-ups, Muon the
preset's. Muon then trains again on `SHARE` of the tokens: where its loss is still not above AdamW's on all of them,
it needs that much less.
"""

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.measurements import Measurement, compare, record
from benchmarks.runs.nanogpt import load_nanogpt
from benchmarks.runs.training import MINI, mini_params, run_training, training_project
from stages.formats.reports import read_json
from stages.formats.tokens import TokenStore
from stages.train.data.batches import ProcessShare, epoch_order, micro_batches, read_rows
from stages.train.data.order import open_order
from stages.train.data.packing import pack
from stages.train.params import TrainParams

SHARE = 0.7
"""Of the tokens."""

ADAMW = ((1e-3, 20), (1e-3, 100), (2e-3, 100))
"""Learning rates with their warm-up steps."""

NANOGPT = ((1e-3, 100), (3e-3, 100))
"""The same. The first is that of its small configurations (config/train_shakespeare_char.py)."""

EVALUATION_SEQUENCES = 256


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    params = mini_params()
    steps = 50 if arguments.quick else params.max_steps
    muon = ours(steps, "muon")
    muon_on_less = ours(round(SHARE * steps), "muon")
    adamw = min(ours(steps, "adamw", rate, warmup) for rate, warmup in ADAMW)
    figures = [
        figure(f"Muon on {steps} steps of a {MINI}", muon, adamw, f"AdamW on {steps}, best of {len(ADAMW)}"),
        figure(
            f"Muon on {round(SHARE * steps)} steps of it ({1 - SHARE:.0%} fewer tokens)",
            muon_on_less,
            adamw,
            f"AdamW on {steps}, best of {len(ADAMW)}",
        ),
    ]
    if arguments.nanogpt:
        peer = min(nanogpts(arguments.nanogpt, params, steps, *settings) for settings in NANOGPT)
        figures.append(figure(f"Muon on {steps} steps of a {MINI}", muon, peer, f"nanoGPT's, best of {len(NANOGPT)}"))
    else:
        print("nanoGPT is left out: no --nanogpt PATH")
    record("optimizers", figures, quick=arguments.quick)


def figure(name: str, own: float, peer: float, peer_name: str) -> Measurement:
    """Held-out bits per byte of both."""
    return compare(
        f"{name}: held-out loss",
        [own],
        [peer],
        peer_name=peer_name,
        unit="bits per byte",
        higher_is_better=False,
        libraries=["torch", "transformers"],
    )


def ours(steps: int, optimizer: str, learning_rate: float | None = None, warmup_steps: int | None = None) -> float:
    """Held-out bits per byte after a run of the training stage."""
    changes: dict[str, Any] = {"max_steps": steps, "optimizer__name": optimizer}
    changes |= {"evaluate_every_steps": steps, "evaluation_sequences": EVALUATION_SEQUENCES}
    if learning_rate is not None:
        changes[f"optimizer__{optimizer}_learning_rate"] = learning_rate
    if warmup_steps is not None:
        changes["schedule__warmup_steps"] = min(warmup_steps, steps // 2)
    with tempfile.TemporaryDirectory() as folder:
        project = training_project(Path(folder) / "run", **changes)
        run_training(project, PARROTFLOW_COMPILE="on")
        loss = float(read_json(project / "reports/train.json")["validation_bits_per_byte"])
    print(
        f"{optimizer}, {steps} steps, learning rate {learning_rate or 'default'}: {loss:.4f} bits per byte", flush=True
    )
    return loss


def nanogpts(folder: Path, params: TrainParams, steps: int, learning_rate: float, warmup_steps: int) -> float:
    """The same by nanoGPT's model, optimizer and schedule (a tenth of the rate at the end), compiled, in bf16."""
    training, held_out = TokenStore(Path("data/tokens/train")), TokenStore(Path("data/tokens/validation"))
    length, warmup = params.sequence_length, min(warmup_steps, steps // 2)
    model = load_nanogpt(folder, params, training.manifest.vocab_size)
    torch.manual_seed(params.seed)
    optimizer = model.configure_optimizers(0.1, learning_rate, (0.9, 0.99), "cpu")
    compiled: Any = torch.compile(model, dynamic=False)
    order = open_order(training, params)
    whole = ProcessShare(0, 1, params.global_batch_size)
    params = params.model_copy(update={"max_steps": steps})
    for batch in micro_batches(training, order, params, whole, range(params.max_steps)):
        step = batch.step
        decayed = 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * ((step + 1) / (warmup + 1) if step < warmup else decayed)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            _, loss = compiled(torch.from_numpy(batch.rows.inputs), torch.from_numpy(batch.rows.targets))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    index = pack(held_out, length)
    drawn = epoch_order(params.seed, 0, index.rows)[:EVALUATION_SEQUENCES]
    nats = tokens = 0.0
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        for start in range(0, len(drawn), 16):
            rows = read_rows(held_out, index, drawn[start : start + 16], length)
            _, loss = model(torch.from_numpy(rows.inputs), torch.from_numpy(rows.targets))
            targets = rows.targets.size
            nats += loss.item() * targets
            tokens += targets
    bits = nats / tokens / math.log(2) * held_out.manifest.tokens / held_out.manifest.bytes
    settings = f"learning rate {learning_rate}, warm-up {warmup}"
    print(f"nanoGPT, {steps} steps, {settings}: {bits:.4f} bits per byte", flush=True)
    return bits


if __name__ == "__main__":
    main()
