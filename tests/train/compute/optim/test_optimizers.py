"""Each tensor's optimizer and decay follow from what it does; and one more optimizer is one file and a name.

The diff that CONTRIBUTING.md shows is applied, and trains. Muon has torch's bits in bf16, and in fp32
the update of its definition.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from stages.train.compute.model.build import build_model
from stages.train.compute.optim.build import build_optimizers
from stages.train.compute.optim.muon import MAX_STACKED_VALUES, Muon, orthogonalise, orthogonalise_all, stacks
from stages.train.compute.optim.roles import weights
from stages.train.params import TrainParams
from tests.small_project import ROOT
from tests.train.models import MODELS, vocabulary
from tests.train.small_run import params, run, write_params, write_project

NORMS = {r"\.(input|post_attention)_layernorm\.weight": "other", r"model\.norm\.weight": "other"}
ATTENTION = {r"\.[qkvo]_proj\.weight": "matrix"}
UNTIED = {r"embed_tokens\.weight": "embedding", r"lm_head\.weight": "head"}
EXPERTS = {r"\.experts\.(gate_up|down)_proj": "experts", r"\.(gate|router)\.weight": "router"}
MLP = {r"\.(gate|up|down)_proj\.weight": "matrix"}

ROLES: dict[str, dict[str, str]] = {
    "mixtral": UNTIED | ATTENTION | EXPERTS | NORMS,
    "qwen3_moe": UNTIED | ATTENTION | EXPERTS | NORMS | {r"\.[qk]_norm\.weight": "other"},
    "gpt_oss": UNTIED
    | ATTENTION
    | EXPERTS
    | NORMS
    | {r"\.[qkvo]_proj\.bias": "other", r"_proj_bias": "other", r"router\.bias": "other", r"sinks": "other"},
    "jamba": UNTIED
    | ATTENTION
    | EXPERTS
    | MLP
    | {r"\.mamba\.(in|x|dt|out)_proj\.weight": "matrix", r"\.mamba\.(A_log|D|conv1d\.\w+|dt_proj\.bias)": "other"}
    | {r"(layernorm|norm)\.weight": "other"},
    "llama": UNTIED | ATTENTION | MLP | NORMS,
    "gpt_neox": {r"embed_in\.weight": "embedding", r"lm_head\.weight": "head"}
    | {r"(query_key_value|dense|dense_h_to_4h|dense_4h_to_h)\.weight": "matrix"}
    | {r"\.bias": "other", r"norm\.weight": "other"},
    "qwen3": {r"embed_tokens\.weight": "embedding"} | ATTENTION | MLP | NORMS | {r"\.[qk]_norm\.weight": "other"},
    "gpt2": {
        r"w[tp]e\.weight": "embedding",
        r"c_(attn|proj|fc)\.weight": "matrix",
        r"\.(bias|ln_\w+\.weight)": "other",
    },
}
"""Of every tensor: what the end of its name says -> its role."""


def tiny(name: str, **changes: Any) -> tuple[PreTrainedModel, TrainParams]:
    values = TrainParams.model_validate(params(model=MODELS[name], **changes))
    return build_model(values, vocabulary()), values


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_has_its_role(name: str) -> None:
    for weight in weights(tiny(name)[0]):
        expected = {role for ending, role in ROLES[name].items() if re.search(f"({ending})$", weight.name)}
        assert expected == {weight.role}, weight.name


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_decay_is_on_what_multiplies_activations_on_embeddings_and_on_nothing_else(name: str, optimizer: str) -> None:
    """By what torch computes in a step, not by names."""
    model, values = tiny(name, optimizer__name=optimizer)
    groups = [
        group for one in build_optimizers(model, values.optimizer, values.precision) for group in one.param_groups
    ]
    decayed = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
    trained = [parameter for group in groups for parameter in group["params"]]
    assert len(trained) == len({id(parameter) for parameter in trained}) == len(list(model.parameters()))
    with Multiplied() as seen:
        model(input_ids=torch.arange(64).reshape(4, 16), use_cache=False)
    for weight in weights(model):
        multiplies = weight.parameter.untyped_storage().data_ptr() in seen.operands
        assert (id(weight.parameter) in decayed) == (multiplies or weight.role == "embedding"), weight.name


class Multiplied(TorchDispatchMode):
    """The storages of all operands of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.operands: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm"):
            tensors = [tensor for tensor in args if isinstance(tensor, torch.Tensor)][-2:]
            self.operands |= {tensor.untyped_storage().data_ptr() for tensor in tensors}
        return func(*args, **(kwargs or {}))


def test_the_optimizer_that_contributing_adds_trains_and_names_its_own_curve(tmp_path: Path) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    diff = text.partition("```diff\n")[2].partition("```")[0]
    (settings,) = (line.strip() for line in text.splitlines() if line.strip().startswith("optimizer: {"))
    code, project = tmp_path / "code", write_project(tmp_path / "project", max_steps=2)
    shutil.copytree(ROOT / "stages", code / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "requirements.lock", code / "requirements.lock")
    subprocess.run(["git", "apply", "-"], cwd=code, input=diff, text=True, check=True)
    write_params(project, max_steps=2, **yaml.safe_load(settings))

    said = run(project, PYTHONPATH=str(code))

    assert "step 2/2" in said
    curve = (project / "reports/curves/learning_rate.tsv").read_text(encoding="utf-8").splitlines()
    assert curve == ["step\tsgd", "1\t0.05", "2\t0.1"]
    loss = (project / "reports/curves/training_loss.tsv").read_text(encoding="utf-8").splitlines()
    assert len(loss) == 3


SETTINGS = {"lr": 0.01, "momentum": 0.95, "weight_decay": 0.1}


@pytest.mark.parametrize("shape", [(16, 48), (48, 16), (16, 16)])
def test_muon_in_bf16_has_the_bits_of_torchs(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(shape), torch.randn(3, *shape)
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    own = Muon([ours], **SETTINGS, precision="bf16")
    other = torch.optim.Muon([theirs], 0.01, momentum=0.95, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for gradient in gradients:
        for parameter, optimizer in ((ours, own), (theirs, other)):
            parameter.grad = gradient.clone()
            optimizer.step()
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("shape", [(16, 48), (48, 16), (3, 16, 24)])
def test_tensors_of_one_shape_are_orthogonalised_together_as_they_are_one_by_one(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    updates = [torch.randn(shape) for _ in range(3)]
    for together, one in zip(orthogonalise_all(updates, torch.float32), updates, strict=True):
        torch.testing.assert_close(together, orthogonalise(one, torch.float32), rtol=0, atol=1e-5)


def test_on_a_gpu_matrices_of_one_shape_are_taken_together_up_to_a_limit() -> None:
    shapes = [(64, 64), (64, 128), (64, 64), (8192, 4096), (8192, 4096), (8192, 4096)]
    elsewhere = [torch.empty(shape, device="meta") for shape in shapes]
    taken = stacks(elsewhere)
    assert [[tuple(matrix.shape) for matrix in stack] for stack in taken] == [
        [(64, 64), (64, 64)],
        [(64, 128)],
        [(8192, 4096), (8192, 4096)],
        [(8192, 4096)],
    ]
    assert all(sum(matrix.numel() for matrix in stack) <= MAX_STACKED_VALUES for stack in taken)
    assert len(stacks(torch.empty(2, 2) for _ in range(5))) == 5
