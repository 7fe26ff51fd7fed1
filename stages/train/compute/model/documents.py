"""Document attention: a token attends only to its own document (`train.attention: document`).

Positions restart at 0 with each document, and transformers derives the mask of a packed row from them: for
flex_attention on a GPU, which skips masked pairs, otherwise for torch's attention kernels.
"""

import inspect

import torch
from transformers import PreTrainedModel

from stages.runtime.errors import UserError
from stages.train.compute.model.attention import TRIAL_TOKENS, logits_of

SCORE_DROPOUTS = ("attn_pdrop", "attention_dropout", "attention_probs_dropout_prob")
"""Names in configs for the dropout of attention scores, which flex_attention does not support."""


def use_flex_attention(model: PreTrainedModel) -> None:
    """Use flex_attention instead of torch's attention kernels if the model supports it."""
    config = model.config.get_text_config()
    drops_out = any(getattr(config, name, 0) for name in SCORE_DROPOUTS)
    if config._attn_implementation == "sdpa" and model._supports_flex_attn and not drops_out:
        model.set_attn_implementation("flex_attention")


@torch.no_grad()
def check_documents_kept_apart(model: PreTrainedModel) -> None:
    """Raise UserError if the logits of a row's second document depend on the first.

    Models with recurrences or convolutions, or without positions, cannot keep documents apart.
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
