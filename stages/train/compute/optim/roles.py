"""The roles of weights, which decide which optimizer trains a weight and whether it is decayed.

| role       | what it is                                                              | with muon    | decay |
|------------|-------------------------------------------------------------------------|--------------|-------|
| matrix     | weight of a linear layer (torch's, or GPT-2's `Conv1D`), fused or not   | Muon         | yes   |
| experts    | weights of all experts of a layer, (experts, m, n): one matrix each      | Muon         | yes   |
| head       | output matrix that is no embedding (untied)                              | AdamW        | yes   |
| router     | scores of experts, (experts, width), and gates of a single value         | AdamW        | yes   |
| embedding  | looked up by id or position, also where it is the output matrix too (tied) | AdamW      | yes   |
| other      | norms, biases, kernels of convolutions, and tables such as mamba's `A_log` | AdamW      | no    |

Weights that multiply activations are decayed (as in GPT-3), and embeddings too (as in CodeParrot and nanoGPT), which
lowers the held-out loss (docs/explanation/recipe.md). Muon trains those of the hidden layers: its authors leave
embeddings and heads to AdamW (Jordan et al. 2024; Liu et al. 2025), and orthogonalizing a router would make the scores
of its experts equally large. The number of dimensions is no criterion: `A_log` and the biases of GPT-OSS's experts are
2-D.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from stages.train.compute.optim.settings import Role

DECAYED: frozenset[Role] = frozenset({"matrix", "experts", "head", "router", "embedding"})

EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names in configs for the number of experts."""


@dataclass(frozen=True, eq=False)
class TrainedWeight:
    """A trained parameter of a model; one that several names share occurs once."""

    name: str
    parameter: nn.Parameter
    role: Role

    @property
    def is_decayed(self) -> bool:
        """True if weight decay is applied to it."""
        return self.role in DECAYED


def weights(model: PreTrainedModel) -> Iterator[TrainedWeight]:
    """The model's trained parameters with their roles, in the model's order."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    output = model.get_output_embeddings()
    heads = {id(output.weight)} if isinstance(output, nn.Linear) else set()
    config = model.config.get_text_config()
    experts = next((count for name in EXPERT_COUNTS if (count := getattr(config, name, None))), None)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            role = _role(model, name, parameter, experts)
            if id(parameter) in embeddings:
                role = "embedding"
            elif id(parameter) in heads:
                role = "head"
            yield TrainedWeight(name, parameter, role)


def _role(model: PreTrainedModel, name: str, parameter: nn.Parameter, experts: int | None) -> Role:
    """The role of a parameter that is neither embedding nor head."""
    path, _, attribute = name.rpartition(".")
    owner = model.get_submodule(path)
    if attribute.endswith("bias"):
        return "other"
    if parameter.ndim == 3 and "expert" in f"{path} {type(owner).__name__}".lower():
        return "experts"
    if parameter.ndim != 2:
        return "other"
    linear = isinstance(owner, nn.Linear | Conv1D)
    if _chooses(path, owner) and (parameter.shape[0] in (1, experts) or not linear):
        return "router"
    return "matrix" if linear else "other"


def _chooses(path: str, owner: nn.Module) -> bool:
    """True if a module is named a router or a gate; `gate_proj`, a part of an MLP, is not."""
    named = any(part in ("gate", "router") or part.endswith("_gate") for part in path.split("."))
    return named or "Router" in type(owner).__name__
