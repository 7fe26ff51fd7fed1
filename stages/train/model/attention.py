"""What a token may look at: all before it in its row (`causal`), or what is of its own document (`document`).

`causal` needs no mask: the kernels know the triangle, and are fastest so. transformers leaves the mask out as well, but
builds one as soon as torch.compile looks on (before torch 2.14), so the same attention is registered with a rule of its
own. `document` gives positions that begin at 0 with each document; transformers makes the mask of a packed row of them.
"""

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from stages.runtime.entry import UserError

UNMASKED = "sdpa_unmasked"

STRETCH = 6
"""Tokens of each of the two documents that a model is tried with."""


def leave_out_mask(model: PreTrainedModel) -> None:
    """Have a model that attends by torch's kernels do so without a mask where the mask is the plain triangle.

    Only for whole rows that are trained on: neither padded nor continued from a cache.
    """
    if model.config._attn_implementation == "sdpa":
        AttentionInterface.register(UNMASKED, sdpa_attention_forward)
        AttentionMaskInterface.register(UNMASKED, _mask_unless_plain)
        model.set_attn_implementation(UNMASKED)


def _mask_unless_plain(
    *, q_length: int, kv_length: int, local_size: int | None = None, use_vmap: bool = False, **others: Any
) -> Tensor | None:
    """A mask for windows and for shapes of a model's own (`use_vmap`); None for the triangle."""
    if q_length == kv_length and (local_size is None or kv_length < local_size) and not use_vmap:
        return None
    mask: Tensor | None = sdpa_mask(
        q_length=q_length, kv_length=kv_length, local_size=local_size, use_vmap=use_vmap, **others
    )
    return mask


@torch.no_grad()
def check_documents_kept_apart(model: PreTrainedModel) -> None:
    """Raise UserError where the second document of a row is read otherwise when the first one is another.

    Models that mix tokens by a recurrence or a convolution, or know no positions, cannot keep documents apart.
    """
    apart = "position_ids" in inspect.signature(model.forward).parameters
    if apart:
        training = model.training
        model.eval()
        second = torch.arange(STRETCH)
        rows = torch.stack([torch.cat([first, second]) for first in (second + 1, second + 2)])
        positions = torch.arange(STRETCH).repeat(2).expand(2, -1)
        one, other = model(input_ids=rows, position_ids=positions, use_cache=False).logits[:, STRETCH:]
        apart = torch.allclose(one, other, rtol=1e-4, atol=1e-5)
        model.train(training)
    if not apart:
        raise UserError(
            f"params.yaml: train.attention = document: `{model.config.model_type}` cannot keep the documents of a row "
            "apart in transformers; use causal, or another model_type"
        )
