"""AdamW, or Muon for the matrices and AdamW for the rest, with the learning rate set from outside at each step."""

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from stages.train.params import Optimizer


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


def build_optimizers(model: nn.Module, params: Optimizer) -> Optimizers:
    """Optimizers over all of the model's parameters.

    Weight decay falls on the matrices alone (as in GPT-3: no biases, no norms), and on embeddings as little as on
    norms. Muon (Jordan et al. 2024) orthogonalises a matrix's momentum; its rate is scaled to AdamW's update size
    (Liu et al. 2025, "Muon is Scalable for LLM Training", section 2.2).
    """
    embeddings = {id(layer.weight) for layer in model.modules() if isinstance(layer, nn.Embedding)}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [p for p in trained if p.ndim == 2 and id(p) not in embeddings]
    others = [p for p in trained if not (p.ndim == 2 and id(p) not in embeddings)]
    if params.name == "adamw":
        groups = [{"params": matrices, "weight_decay": params.weight_decay}, {"params": others, "weight_decay": 0.0}]
        return Optimizers([(_adamw(groups, params), params.learning_rate)])
    muon = torch.optim.Muon(
        matrices,
        lr=params.matrix_learning_rate,
        momentum=params.momentum,
        weight_decay=params.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    adamw = _adamw([{"params": others, "weight_decay": 0.0}], params)
    return Optimizers([(muon, params.matrix_learning_rate), (adamw, params.learning_rate)])


def _adamw(groups: list[dict[str, object]], params: Optimizer) -> torch.optim.AdamW:
    first, second = params.betas
    return torch.optim.AdamW(groups, lr=params.learning_rate, betas=(first, second), eps=params.epsilon, fused=True)
