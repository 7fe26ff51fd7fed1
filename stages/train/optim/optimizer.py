"""AdamW, or Muon for the matrices and AdamW for the rest, with the learning rate set at each step."""

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from stages.train.optim.muon import Muon
from stages.train.params import Optimizer as OptimizerParams
from stages.train.params import TrainParams


class Optimizers:
    """The optimizers of one model, stepped together."""

    def __init__(self, peaks: Iterable[tuple[torch.optim.Optimizer, float]]) -> None:
        self._peaks = list(peaks)

    def __iter__(self) -> Iterator[torch.optim.Optimizer]:
        return (optimizer for optimizer, _ in self._peaks)

    def step(self, lr_multiplier: float) -> None:
        """One update at `lr_multiplier` of each peak learning rate, and the gradients are forgotten."""
        for optimizer, peak in self._peaks:
            for group in optimizer.param_groups:
                group["lr"] = peak * lr_multiplier
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def build_optimizers(model: nn.Module, train: TrainParams) -> Optimizers:
    """Optimizers over all of the model's parameters.

    Weight decay applies to the matrices alone (as in GPT-3: no biases, no norms) and not to embeddings.
    """
    params = train.optimizer
    embeddings = {id(layer.weight) for layer in model.modules() if isinstance(layer, nn.Embedding)}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [p for p in trained if p.ndim == 2 and id(p) not in embeddings]
    others = [p for p in trained if not (p.ndim == 2 and id(p) not in embeddings)]
    if params.name == "adamw":
        groups = [{"params": matrices, "weight_decay": params.weight_decay}, {"params": others, "weight_decay": 0.0}]
        return Optimizers([(_adamw(groups, params), params.adamw_learning_rate)])
    dtype = torch.bfloat16 if train.precision == "bf16" else torch.float32
    muon = Muon(matrices, params.muon_learning_rate, params.momentum, params.weight_decay, dtype)
    adamw = _adamw([{"params": others, "weight_decay": 0.0}], params)
    return Optimizers([(muon, params.muon_learning_rate), (adamw, params.adamw_learning_rate)])


def _adamw(groups: list[dict[str, object]], params: OptimizerParams) -> torch.optim.AdamW:
    first, second = params.betas
    return torch.optim.AdamW(
        groups, lr=params.adamw_learning_rate, betas=(first, second), eps=params.epsilon, fused=True
    )
