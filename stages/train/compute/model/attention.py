"""Causal attention: a token attends to all earlier tokens of its row (`train.attention: causal`).

It needs no mask, and the kernels are fastest without one. transformers omits the mask too, except under torch.compile
(before torch 2.14), so the same attention is registered under another name.
"""

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from stages.runtime.errors import UserError, describe_error

UNMASKED = "sdpa_unmasked"
"""For this name transformers builds no mask, nor checks on the device whether a row holds several documents."""

AttentionInterface.register(UNMASKED, sdpa_attention_forward)

WINDOWS = ("sliding_window", "attention_chunk_size", "window_size")
"""Names in configs for the number of tokens that a layer attends to."""

TRIAL_TOKENS = 12
"""Tokens in the rows of a trial."""


@torch.no_grad()
def omit_mask(model: PreTrainedModel, sequence_length: int) -> None:
    """Omit a purely causal mask in a model that uses torch's attention kernels.

    This is valid only for training rows: neither padded nor continued from a cache. A model keeps its mask if a layer
    attends to a window, or if its logits change without the mask, because it adds more to it (doge).
    """
    config = model.config.get_text_config()
    windows = [size for name in WINDOWS if (size := getattr(config, name, None))]
    if model.config._attn_implementation == "sdpa" and all(size > sequence_length for size in windows):
        row = torch.arange(min(TRIAL_TOKENS, sequence_length))[None]
        masked = logits_of(model, row)
        model.set_attn_implementation(UNMASKED)
        if not torch.allclose(logits_of(model, row), masked, rtol=1e-4, atol=1e-5):
            model.set_attn_implementation("sdpa")


@torch.no_grad()
def logits_of(model: PreTrainedModel, rows: Tensor, **inputs: Tensor) -> Tensor:
    """The logits without dropout. Raises UserError if the model cannot compute them or they are not finite."""
    training = model.training
    model.eval()
    try:
        logits: Tensor = model(input_ids=rows, use_cache=False, **inputs).logits
    except Exception as error:  # architectures raise different exceptions
        raise UserError(
            f"params.yaml: train.model: `{model.config.model_type}` with these fields cannot compute the logits of a "
            f"row of tokens: {describe_error(error)}"
        ) from None
    finally:
        model.train(training)
    if not logits.isfinite().all():
        raise UserError(
            f"params.yaml: train.model: the logits of `{model.config.model_type}` with these fields are infinite or "
            "not a number before any training"
        )
    return logits


@torch.no_grad()
def check_causal(model: PreTrainedModel, sequence_length: int) -> None:
    """Raise UserError if a token's logits depend on a later token, as in BERT: it would see what it predicts."""
    row = torch.arange(min(TRIAL_TOKENS, sequence_length))
    rows = torch.stack([row, torch.cat([row[:-1], row[:1]])])
    first, second = logits_of(model, rows)[:, :-1]
    if not torch.allclose(first, second, rtol=1e-4, atol=1e-5):
        # Some encoders, such as BERT, can be decoders.
        as_decoder = "set train.model.is_decoder: true, or " if hasattr(model.config, "is_decoder") else ""
        raise UserError(
            f"params.yaml: train.model.model_type = {model.config.model_type!r}: not causal: a token's prediction "
            f"depends on the tokens after it; {as_decoder}use a causal model_type, e.g. gpt2, llama, qwen3, gpt_neox"
        )
