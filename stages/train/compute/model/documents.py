"""A token attends to its own document alone (`train.attention: document`).

Positions begin at 0 with each document, from which transformers derives the mask of a packed row: for flex_attention on
a GPU, which skips the pairs that are masked, else for torch's attention kernels.
"""

import inspect

import torch
from transformers import PreTrainedModel

from stages.runtime.errors import UserError
from stages.train.compute.model.attention import TRIAL_TOKENS, logits_of

SCORE_DROPOUTS = ("attn_pdrop", "attention_dropout", "attention_probs_dropout_prob")
"""How configs name the dropout of attention's scores, which flex_attention does not have."""


def use_flex_attention(model: PreTrainedModel) -> None:
    """Let transformers use flex_attention instead of torch's attention kernels, if the model can."""
    config = model.config.get_text_config()
    drops_out = any(getattr(config, name, 0) for name in SCORE_DROPOUTS)
    if config._attn_implementation == "sdpa" and model._supports_flex_attn and not drops_out:
        model.set_attn_implementation("flex_attention")


@torch.no_grad()
def check_documents_kept_apart(model: PreTrainedModel) -> None:
    """Raise UserError if another first document in a row changes the logits of the second.

    Models that mix tokens by a recurrence or a convolution, or know no positions, cannot keep documents apart.
    """
    apart = "position_ids" in inspect.signature(model.forward).parameters
    if apart:
        span = TRIAL_TOKENS // 2
        second = torch.arange(span)
        rows = torch.stack([torch.cat([first, second]) for first in (second + 1, second + 2)])
        positions = torch.arange(span).repeat(2).expand(2, -1)
        first_logits, second_logits = logits_of(model, rows, position_ids=positions)[:, span:]
        apart = torch.allclose(first_logits, second_logits, rtol=1e-4, atol=1e-5)
    if not apart:
        raise UserError(
            f"params.yaml: train.attention = document: `{model.config.model_type}` cannot keep the documents of a row "
            "apart in transformers; use causal, or another model_type"
        )
