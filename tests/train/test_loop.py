"""The losses of a run are those of a plain loop: transformers' loss with labels, and optimizers written out here.

A loss or weights that are no numbers any more end the run before they spoil a checkpoint. A weight decay of a million
makes the matrices grow three thousandfold in each step: a mistake that really explodes.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from stages.formats.tokens import TokenStore
from stages.runtime.errors import EXIT_USER_ERROR
from stages.runtime.section import check_section, read_params_file
from stages.train.checkpoint.manifest import read_manifest
from stages.train.compute.data.order import open_order
from stages.train.compute.data.rows import Rows, read_rows
from stages.train.compute.step import pin_memory
from stages.train.origins import origins
from stages.train.params import TrainParams
from tests.train.models import MODELS
from tests.train.small_run import fork, params, run, run_workers, write_project

STEPS, WARMUP = 8, 2

BY_MUON = (
    r"\.(q|k|v|o|gate|up|down|gate_up|in|x|dt|out)_proj(\.weight)?$|(query_key_value|dense|dense_h_to_4h"
    r"|dense_4h_to_h)\.weight$|\.c_(attn|proj|fc)\.weight$"
)
DECAYED_BY_ADAMW = r"(lm_head|embed_tokens|embed_in|\.wte|\.wpe)\.weight$|\.(router|gate)\.weight$"


class PlainMuon:
    """Momentum, Newton-Schulz and decay for one matrix, in fp32."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.momentum = matrix, torch.zeros_like(matrix)

    def step(self, gradient: Tensor, rate: float) -> None:
        self.momentum = 0.95 * self.momentum + 0.05 * gradient
        x = 0.05 * gradient + 0.95 * self.momentum
        x = x / x.norm().clamp(min=1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        self.matrix.mul_(1 - rate * 0.1).add_(x, alpha=-rate * 0.2 * math.sqrt(max(x.shape)))


def plain_losses(project: Path, values: TrainParams) -> Iterator[float]:
    """The cross-entropy of each step; rows one by one, weighted by their targets."""
    store = TokenStore(project / "data/tokens/train")
    order = open_order(store, values)
    config = AutoConfig.for_model(**values.model, vocab_size=300, bos_token_id=0, eos_token_id=0)
    config.max_position_embeddings = values.sequence_length
    if config.pad_token_id is not None:
        config.pad_token_id = 0  # that of another vocabulary; its row starts at zero
    torch.manual_seed(values.seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    model.resize_token_embeddings(320, mean_resizing=False)
    model.get_input_embeddings().padding_idx = None  # and is trained as any other
    named = dict(model.named_parameters())
    muon = {name: muons(parameter) for name, parameter in named.items() if re.search(BY_MUON, name)}
    rest = [(parameter, name) for name, parameter in named.items() if name not in muon]
    groups = [
        {"params": [p for p, name in rest if bool(re.search(DECAYED_BY_ADAMW, name)) is decays], "weight_decay": decay}
        for decays, decay in ((True, 0.1), (False, 0.0))
    ]
    adamw = torch.optim.AdamW([group for group in groups if group["params"]], lr=0.003, betas=(0.9, 0.95), eps=1e-8)
    for step in range(STEPS):
        rows = order.rows_of_step(step)
        cross_entropy, weight = 0.0, 1 / len(rows)
        for row in rows:
            batch = read_rows(store, order.index, np.array([row]), values.sequence_length)
            inputs, targets = torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)
            output = model(input_ids=inputs, labels=targets, shift_labels=targets, use_cache=False)
            (output.loss * weight).backward()
            of_routers = getattr(output, "aux_loss", None)
            added = 0.05 * of_routers.item() if of_routers is not None else 0.0
            cross_entropy += weight * (output.loss.item() - added)
        yield cross_entropy
        torch.nn.utils.clip_grad_norm_(model.parameters(), values.max_gradient_norm)
        progress = (step - WARMUP) / (STEPS - WARMUP)
        cosine = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress))
        rate = 0.003 * ((step + 1) / WARMUP if step < WARMUP else cosine)
        for group in adamw.param_groups:
            group["lr"] = rate
        adamw.step()
        for name, matrices in muon.items():
            gradient = named[name].grad
            assert gradient is not None
            gradients = list(gradient) if gradient.ndim == 3 else [gradient]
            for matrix, own in zip(matrices, gradients, strict=True):
                matrix.step(own, rate)
        model.zero_grad()


def muons(parameter: nn.Parameter) -> list[PlainMuon]:
    """One for each expert, or one."""
    return [PlainMuon(matrix) for matrix in (parameter.data if parameter.ndim == 3 else [parameter.data])]


@pytest.mark.parametrize("name", MODELS)
def test_the_losses_of_a_run_are_those_of_a_plain_loop(name: str, tmp_path: Path) -> None:
    changes = {"model": MODELS[name], "max_steps": STEPS, "schedule__warmup_steps": WARMUP}
    project = write_project(tmp_path / "project", **changes)
    run_workers(project, 1, PARROTFLOW_MICRO_BATCH="3")
    curve = (project / "reports/curves/training_loss.tsv").read_text(encoding="utf-8").splitlines()[1:]
    found = [float(line.split("\t")[1]) for line in curve]
    assert found == pytest.approx(list(plain_losses(project, TrainParams.model_validate(params(**changes)))), abs=1e-5)
    assert found[-1] < found[0]
    assert (project / "reports/curves/aux_loss.tsv").exists() == ("output_router_logits" in MODELS[name])


EXPLODES = {"optimizer__weight_decay": 1e6, "evaluate_every_steps": 100}


def test_two_processes_name_documents_of_the_batch_once_and_the_checkpoint_before_is_kept(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", **EXPLODES, checkpoint_every_steps=2)
    said = run(project, expected_code=EXIT_USER_ERROR, begin=fork, PARROTFLOW_LAUNCH="cpu_2").splitlines()

    assert [line.split()[0] for line in said] == ["model:", "time:", "memory:", "launching", "step", "error:"]
    step = int(said[-1].partition("at step ")[2].partition(";")[0])
    assert said[-1].startswith("error: train: ")
    assert said[-1].endswith("Lower train.optimizer.muon_learning_rate or raise train.schedule.warmup_steps")
    named = said[-1].partition("its batch holds ")[2].partition(". The last checkpoint is kept. ")[0]
    store = TokenStore(project / "data/tokens/train")
    launched = check_section("train", read_params_file(project / "params.yaml")["train"], TrainParams)
    trained_on = {f"{origin.source}:{origin.path}" for origin in origins(store, open_order(store, launched), step)}
    documents = named.removesuffix(" and others").split(", ")
    assert len(documents) == min(8, len(trained_on)), "the step, and so its batch, depends on the processor"
    assert named.endswith(" and others") == (len(trained_on) > 8)
    assert set(documents) <= trained_on

    newest = max((project / ".parrotflow/checkpoints").glob("*/step-*"))
    assert read_manifest(newest).step < step


def test_weights_that_the_step_before_a_checkpoint_spoiled_are_not_saved(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The loss of that step is still finite: it was measured before the weights changed."""
    values = EXPLODES | {"optimizer__weight_decay": 3e12, "checkpoint_every_steps": 1, "log_every_steps": 100}
    project = write_project(tmp_path / "project", **values)
    with pytest.raises(AssertionError):
        run_workers(project, 1)
    said = capfd.readouterr().err.splitlines()
    assert re.search(r"UserError: train: the norm of the weights is (inf|nan) at step 2; its batch holds s:", said[-1])
    assert [path.name for path in (project / ".parrotflow/checkpoints").glob("*/step-*")] == ["step-00000001"]


@pytest.mark.parametrize(("device", "set_to"), [("cuda", []), ("cuda:1", [1])])
def test_the_thread_that_reads_is_on_the_gpu_of_its_process(
    monkeypatch: pytest.MonkeyPatch, device: str, set_to: list[int]
) -> None:
    """In a single process the device has no index, and torch refuses to set such a one."""
    seen: list[int] = []
    monkeypatch.setattr(torch._C, "_cuda_setDevice", seen.append, raising=False)
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)
    numbers = np.arange(6).reshape(2, 3)
    rows = Rows(numbers, numbers + 1, numbers)
    same = pin_memory(rows, torch.device(device))
    assert seen == set_to
    assert (same.targets == rows.targets).all()
