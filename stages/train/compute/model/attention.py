"""What a token attends to: all earlier tokens of its row (`causal`), or those of its own document (`document`).

`causal` needs no mask: the kernels know the triangle and are fastest without. transformers also omits it, but builds
one under torch.compile (before torch 2.14), so the same attention is registered under a name of its own. `document`
gives positions that begin at 0 with each document, from which transformers derives the mask of a packed row: for
flex_attention on a GPU, which skips the pairs that are masked, else for torch's attention kernels.
"""

import inspect

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from stages.runtime.errors import UserError

UNMASKED = "sdpa_unmasked"
"""transformers builds no mask for it, and does not ask the device whether a row holds several documents."""

AttentionInterface.register(UNMASKED, sdpa_attention_forward)

WINDOWS = ("sliding_window", "attention_chunk_size", "window_size")
"""How configs name the tokens that a layer attends to."""

SCORE_DROPOUTS = ("attn_pdrop", "attention_dropout", "attention_probs_dropout_prob")
"""How configs name the dropout of attention's scores, which flex_attention does not have."""

SPAN = 6
"""Tokens of each of the two documents that a model is tried with."""


@torch.no_grad()
def leave_out_mask(model: PreTrainedModel, sequence_length: int) -> None:
    """Omit the mask where it is the plain triangle, in a model that uses torch's attention kernels.

    Only for whole rows that are trained on: neither padded nor continued from a cache. A model keeps its mask if a
    layer attends to a window, or if its logits are others without, because it adds something of its own (doge).
    """
    config = model.config.get_text_config()
    windows = [size for name in WINDOWS if (size := getattr(config, name, None))]
    if model.config._attn_implementation == "sdpa" and all(size > sequence_length for size in windows):
        row = torch.arange(min(2 * SPAN, sequence_length))[None]
        masked = _logits(model, row)
        model.set_attn_implementation(UNMASKED)
        if not torch.allclose(_logits(model, row), masked, rtol=1e-4, atol=1e-5):
            model.set_attn_implementation("sdpa")


def use_flex_attention(model: PreTrainedModel) -> None:
    """Let transformers use flex_attention instead of torch's attention kernels, if the model can."""
    config = model.config.get_text_config()
    drops_out = any(getattr(config, name, 0) for name in SCORE_DROPOUTS)
    if config._attn_implementation == "sdpa" and model._supports_flex_attn and not drops_out:
        model.set_attn_implementation("flex_attention")


def head_size(config: PreTrainedConfig) -> int:
    """The size of a query head; 0 for an architecture without attention, such as mamba, which names no heads."""
    heads = getattr(config, "num_attention_heads", None) or 0
    return int(getattr(config, "head_dim", None) or config.hidden_size // heads) if heads else 0


@torch.no_grad()
def _logits(model: PreTrainedModel, rows: Tensor, **inputs: Tensor) -> Tensor:
    """The logits without dropout. Raises UserError if the model cannot compute them or they are not numbers."""
    training = model.training
    model.eval()
    try:
        logits: Tensor = model(input_ids=rows, use_cache=False, **inputs).logits
    except Exception as error:  # Each architecture fails in a way of its own.
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
def check_documents_kept_apart(model: PreTrainedModel) -> None:
    """Raise UserError if another first document in a row changes the logits of the second.

    Models that mix tokens by a recurrence or a convolution, or know no positions, cannot keep documents apart.
    """
    apart = "position_ids" in inspect.signature(model.forward).parameters
    if apart:
        second = torch.arange(SPAN)
        rows = torch.stack([torch.cat([first, second]) for first in (second + 1, second + 2)])
        positions = torch.arange(SPAN).repeat(2).expand(2, -1)
        one, other = _logits(model, rows, position_ids=positions)[:, SPAN:]
        apart = torch.allclose(one, other, rtol=1e-4, atol=1e-5)
    if not apart:
        raise UserError(
            f"params.yaml: train.attention = document: `{model.config.model_type}` cannot keep the documents of a row "
            "apart in transformers; use causal, or another model_type"
        )


@torch.no_grad()
def check_causal(model: PreTrainedModel, sequence_length: int) -> None:
    """Raise UserError if a token's logits depend on a later token, as in BERT: it would see what it predicts."""
    row = torch.arange(min(2 * SPAN, sequence_length))
    rows = torch.stack([row, torch.cat([row[:-1], row[:1]])])
    one, other = _logits(model, rows)[:, :-1]
    if not torch.allclose(one, other, rtol=1e-4, atol=1e-5):
        # An encoder that can be a decoder, such as BERT.
        as_decoder = "set train.model.is_decoder: true, or " if hasattr(model.config, "is_decoder") else ""
        raise UserError(
            f"params.yaml: train.model.model_type = {model.config.model_type!r}: not causal: a token's prediction "
            f"depends on the tokens after it; {as_decoder}use a causal model_type, e.g. gpt2, llama, qwen3, gpt_neox"
        )


def describe_error(error: Exception) -> str:
    """An error's type and message in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
