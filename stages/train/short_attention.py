"""Causal attention of short rows on a CPU, by matrix products that the compiler joins with the softmax between them.

torch's kernel works through a row in tiles, whose set-up outweighs the work while a row is short. Plain products hold
more scores at once, which is little for a short row. With 2 cores and bf16 they take 0.8 of the kernel's time at 256
tokens, half at 128 and a quarter at 64 (forward and backward, heads 64 wide); at 512 as much, and in fp32 more.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

SHORT = 256
"""Tokens of the longest row that is attended to this way."""

QUERIES_AT_ONCE = 128
"""Tokens whose scores are taken together, without the keys behind the last of them: of 256 tokens, a quarter less."""


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **others: Any
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: tensors (rows, heads, tokens, head width) to (rows, tokens, heads, width)."""
    if not _is_worth_it(module, query, key, value, attention_mask, **others):
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **others)
        return output, None
    shared = query.shape[1] // key.shape[1]
    scaling = others.get("scaling") or query.shape[-1] ** -0.5
    # Positions that are rotated leave queries and keys in fp32; autocast has the kernel take them in bf16, as here.
    query, key = query.to(value.dtype), key.to(value.dtype)
    output = causal_attention(query, repeat_kv(key, shared), repeat_kv(value, shared), scaling)
    return output.transpose(1, 2).contiguous(), None


def _is_worth_it(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    **others: Any,
) -> bool:
    """Whether the plain triangle is asked for and nothing else, and the row is of the kind that gains."""
    plain = attention_mask is None and position_bias is None and softcap is None and dropout == 0
    triangle = getattr(module, "is_causal", True) if is_causal is None else is_causal
    gains = value.device.type == "cpu" and value.dtype == torch.bfloat16 and query.shape[2] <= SHORT
    return plain and triangle and query.shape[2] == key.shape[2] and gains and torch.compiler.is_compiling()


def causal_attention(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Attention of each token to itself and all before it; all tensors are (rows, heads, tokens, head width).

    Scaled dot-product attention (Vaswani et al. 2017, "Attention Is All You Need", 3.2.1), its softmax in fp32.
    """
    outputs = []
    for begin in range(0, query.shape[2], QUERIES_AT_ONCE):
        end = min(begin + QUERIES_AT_ONCE, query.shape[2])
        scores = (query[:, :, begin:end] @ key[:, :, :end].transpose(2, 3)).float() * scaling
        seen = torch.ones(end - begin, end, dtype=torch.bool, device=query.device).tril(begin)
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1).to(value.dtype)
        outputs.append(weights @ value[:, :, :end])
    return torch.cat(outputs, 2)
