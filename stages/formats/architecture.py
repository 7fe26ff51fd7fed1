"""What training and evaluation must know alike of an architecture, found in the model itself."""

import torch
from torch import nn
from transformers import PreTrainedModel


@torch.no_grad()
def has_plain_head(model: PreTrainedModel) -> bool:
    """Whether the logits are the base model's output times the head's weights and nothing else, found by a trial.

    Then they can be computed for a part of the tokens at a time, outside of the model.

    Some architectures have a bias in the head, or scale or cap the logits: theirs are left to transformers.
    """
    head, training = model.get_output_embeddings(), model.training
    if not isinstance(head, nn.Linear) or head.bias is not None:
        return False
    model.eval()
    ids = torch.arange(min(8, head.out_features), device=head.weight.device)[None]
    hidden = model.base_model(input_ids=ids, use_cache=False)[0]
    logits = model(input_ids=ids, use_cache=False).logits
    model.train(training)
    return hidden.shape[-1] == head.in_features and torch.equal(head(hidden), logits)


MORE_ROWS = 2
"""OPT and BioGPT have two rows more than positions."""


def learned_positions(model: PreTrainedModel) -> int | None:
    """The number of positions whose vectors are weights of the model; None if it learns none.

    They are the rows of a table besides that of the tokens. The model may be on the device `meta`.
    """
    limit: int | None = getattr(model.config, "max_position_embeddings", None)
    if limit is None:
        return None
    tables = (part for part in model.modules() if isinstance(part, nn.Embedding))
    others = (table.num_embeddings for table in tables if table is not model.get_input_embeddings())
    return limit if any(limit <= rows <= limit + MORE_ROWS for rows in others) else None
