"""Models whose logits can be computed for a part of the tokens at a time, outside of the model.

The loss in training and the likelihood in the evaluation must agree on which models these are.
"""

import torch
from torch import nn
from transformers import PreTrainedModel


@torch.no_grad()
def has_plain_head(model: PreTrainedModel) -> bool:
    """Whether the logits are the base model's output times the head's weights and nothing else, found by a trial.

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
