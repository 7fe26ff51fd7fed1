"""Training steps on the CPU: the same GPT-2, data and batch as nanoGPT and transformers.Trainer, one step at a time.

    python -m benchmarks.train_cpu --nanogpt PATH [--quick]

nanoGPT as shipped (fp32, eager, AdamW unfused) and Trainer with its defaults; both once more as a user would tune them
by hand: fused AdamW, bf16 where the CPU multiplies it fast, eager and compiled. Each side lives in a process of its
own, ours in the environment that our launcher gives its workers, the peers in the user's, those tuned by hand once more
in our launcher's. Every side is warmed up, then they take turns of `STEPS` steps; evaluation,
checkpoints and start-up are measured elsewhere.

All of it is measured on each kind of CPU that this machine has: as it is, and held to narrower instructions by the
libraries' own switches. Results of kinds that it does not have stay on record.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import chdir, redirect_stdout
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import torch
import yaml
from torch import nn
from transformers import Trainer as HuggingFaceTrainer
from transformers import TrainingArguments

from benchmarks.measurements import CPU_KINDS, ROOT, Measurement, compare, interleave, machine_kind, record, recorded
from benchmarks.runs.nanogpt import nanogpt_step
from flows.project.compose import composed_text
from stages.formats.tokens import TokenStore
from stages.runtime.errors import UserError, fail
from stages.runtime.launch import LaunchConfig, environment
from stages.train.compute.data.order import open_order
from stages.train.compute.data.rows import Rows, read_rows
from stages.train.compute.hardware import resolve_precision, set_determinism, should_compile
from stages.train.compute.model.build import build_model
from stages.train.compute.model.flops import flops_per_token
from stages.train.compute.model.loss import CausalLoss
from stages.train.compute.optim.build import build_optimizers
from stages.train.params import TrainParams

Step = Callable[[], None]

TOKENS = Path("data/tokens/train")

STEPS = 4
"""Of a turn: a training loop finds its caches warm and its threads awake."""

TURNS = 3
"""Of a process: by the memory that it happens to get, all of its turns can be 8 % slower than those of the next one."""

SHIPPED = {"Trainer": "Trainer, defaults", "nanoGPT": "nanoGPT as shipped"}
BY_HAND = ", fused AdamW, faster precision"
COMPILED = ", compiled"
LAUNCHED = ", in our launcher's environment"


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        serve_steps(arguments.side, arguments.nanogpt)
        return
    try:
        TokenStore(TOKENS)
    except UserError as error:
        fail(str(error), error.exit_code)
    if not arguments.nanogpt:
        print("nanoGPT is left out: no --nanogpt PATH")
    kinds = list(CPU_KINDS)[list(CPU_KINDS).index(machine_kind()) :]
    for kind in kinds:
        limits = {} if kind == kinds[0] else CPU_KINDS[kind]
        speeds = measure_sides(arguments.nanogpt, limits, 1 if arguments.quick else 5)
        others = [figure for figure in recorded("train_cpu") if figure.figure != figure_name(kind)]
        record("train_cpu", [*others, *compare_all(kind, speeds)], quick=arguments.quick)


def measure_sides(nanogpt: Path | None, limits: Mapping[str, str], starts: int) -> dict[str, list[float]]:
    """Tokens per second of each side's turns, with the CPU held to narrower instructions by environment variables."""
    users = os.environ | limits
    launch = LaunchConfig(Path("deploy/launch/cpu.yaml"), processes=1, machines=1, on_cpu=True, sharded=False)
    launched = {**environment(launch), **limits}
    variables = {"ours": launched}
    for peer in SHIPPED if nanogpt else ["Trainer"]:
        variables[SHIPPED[peer]] = users
        for by_hand in (peer + BY_HAND, peer + COMPILED + BY_HAND):
            variables |= {by_hand: users, by_hand + LAUNCHED: launched}
    speeds: dict[str, list[float]] = {name: [] for name in variables}
    for _ in range(starts):
        sides = {name: Side(name, nanogpt, variables[name]) for name in speeds}
        for name in [name for name, side in sides.items() if side.failed]:
            print(f"{name} is left out: its process failed")
            del speeds[name], sides[name]
        try:
            for name, turns in interleave({name: side.measure for name, side in sides.items()}, TURNS).items():
                speeds[name] += turns
        finally:
            for side in sides.values():
                side.end()
    return speeds


class Side:
    """One side in a process of its own, warmed up; each measurement asks it for a turn."""

    def __init__(self, name: str, nanogpt: Path | None, variables: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "benchmarks.train_cpu", "--side", name]
        command += ["--nanogpt", str(nanogpt)] if nanogpt else []
        self.process = subprocess.Popen(
            command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        cast(IO[str], self.process.stdin).write("\n")
        self.failed = not cast(IO[str], self.process.stdout).readline()

    def measure(self) -> float:
        """Tokens per second of one turn."""
        cast(IO[str], self.process.stdin).write("\n")
        return float(cast(IO[str], self.process.stdout).readline())

    def end(self) -> None:
        """Let the process come to its end."""
        cast(IO[str], self.process.stdin).close()
        self.process.wait()


def serve_steps(name: str, nanogpt: Path | None) -> None:
    """Take `STEPS` steps for each line that comes and answer with their tokens per second."""
    with chdir(ROOT):
        section = yaml.safe_load(composed_text(["model=gpt2_mini"]))["train"]
    section["optimizer"]["name"] = "adamw"
    section["model"]["activation_function"] = "gelu"  # nanoGPT knows no other
    section["precision"] = resolve_precision(section["precision"], "cpu")
    params = TrainParams.model_validate(section)
    store = TokenStore(TOKENS)
    order = open_order(store, params)
    batch = read_rows(store, order.index, order.rows_of_step(0), params.sequence_length)
    with redirect_stdout(sys.stderr):
        if name == "ours":
            step = our_step(params, store, batch)
        else:
            bf16 = BY_HAND in name and params.precision == "bf16"
            variant = {"fused": BY_HAND in name, "compiled": COMPILED in name, "bf16": bf16}
            if name.startswith("Trainer"):
                step = trainer_step(params, store, batch, **variant)
            else:
                cpu, words = torch.device("cpu"), store.manifest.vocab_size
                step = nanogpt_step(cast(Path, nanogpt), params, words, [batch], cpu, **variant)
    for _ in sys.stdin:
        began = time.perf_counter()
        for _ in range(STEPS):
            step()
        print(STEPS * batch.inputs.size / (time.perf_counter() - began), flush=True)


def figure_name(kind: str) -> str:
    """The name of a kind's figures in the results."""
    return f"AdamW steps of a GPT-2 of 4.3 million parameters, {kind}"


def compare_all(kind: str, speeds: dict[str, list[float]]) -> list[Measurement]:
    """Ours against each peer."""
    ours = partial(compare, figure_name(kind), speeds["ours"], unit="tokens/s", higher_is_better=True)
    libraries = ["torch", "transformers", "accelerate"]
    return [ours(peer, peer_name=name, libraries=libraries) for name, peer in speeds.items() if name != "ours"]


def our_step(params: TrainParams, store: TokenStore, batch: Rows) -> Step:
    """What the training loop does in a step, with the precision and compilation that it takes by default on this CPU.

    It gives the same bits each time. The peers promise none and are measured without the
    setting that costs some speed for them.
    """
    loss_of = CausalLoss(build_model(params, store.manifest), params)
    optimizers = build_optimizers(loss_of.model, params.optimizer, params.precision)
    inputs, targets, positions = map(torch.from_numpy, (batch.inputs, batch.targets, batch.positions))
    flops = flops_per_token(loss_of.model, params.sequence_length)
    wanted = should_compile(params, flops, inputs.device)
    compiled = cast(nn.Module, torch.compile(loss_of, dynamic=False)) if wanted else loss_of
    set_determinism(inputs.device)

    def step() -> None:
        torch.autograd.backward(compiled(inputs, targets, positions).sum() / inputs.numel())
        torch.nn.utils.clip_grad_norm_(loss_of.parameters(), params.max_gradient_norm)
        optimizers.step(0.1)

    return step


def trainer_step(
    params: TrainParams, store: TokenStore, batch: Rows, *, fused: bool, compiled: bool, bf16: bool
) -> Step:
    """transformers.Trainer's own training_step, and the optimizer as it builds it."""
    targets = torch.from_numpy(batch.targets)
    values = {"input_ids": torch.from_numpy(batch.inputs), "labels": targets, "shift_labels": targets}
    settings: dict[str, Any] = {"bf16": bf16, "optim": "adamw_torch_fused"} if fused else {}
    arguments = TrainingArguments(output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], **settings)
    model = build_model(params, store.manifest)
    trainer = HuggingFaceTrainer(model=model, args=arguments)
    trainer.current_gradient_accumulation_steps = 1
    optimizer = trainer.create_optimizer()
    prepared = trainer.accelerator.prepare_model(model)
    wrapped = cast(nn.Module, torch.compile(prepared, dynamic=False)) if compiled else prepared

    def step() -> None:
        trainer.training_step(wrapped, dict(values))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


if __name__ == "__main__":
    main()
