"""Attention within the documents of packed rows, by kernels that know where documents begin and build no mask.

A mask says for each pair of a row's tokens whether one sees the other: rows x T x T values. Instead the tokens of all
rows of a micro-batch are taken as one sequence, and `boundaries` says where in it documents begin, and where it ends:
two rows of 4 tokens, the first with documents of 3 and 1 tokens, are [0, 3, 4, 8].

On a GPU it is the FlashAttention that torch has built in (`torch.nn.attention.varlen`): bf16 alone, and the boundaries
stay on the device. On a CPU torch has no such kernel; there each document is a call of torch's flash kernel, so that no
more than the pairs within documents are computed. torch.compile and the forecast of memory see one operation.

transformers hands the boundaries from the model to its layers in the place of a mask: a tensor of four dimensions is
passed on as it is.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

DOCUMENTS = "documents"
"""The name of this attention in a model's config."""

LARGEST_HEAD = 256
HEAD_MULTIPLE = 8
FIRST_CAPABILITY = (8, 0)
"""What FlashAttention takes: the size of a head, and GPUs from Ampere on."""


def as_mask(boundaries: Tensor) -> Tensor:
    """The boundaries, (documents + 1,) and int32, in the shape that transformers passes on."""
    mask = boundaries.view(1, 1, 1, -1)
    if not torch.compiler.is_compiling():
        # Their number differs from batch to batch: layers that are compiled are not to be compiled for each.
        torch._dynamo.maybe_mark_dynamic(mask, 3)
    return mask


def has_kernel(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Whether a device can attend within documents without a mask in this dtype."""
    if device.type != "cuda":
        return device.type == "cpu"
    takes_head = head_size % HEAD_MULTIPLE == 0 and head_size <= LARGEST_HEAD
    return dtype == torch.bfloat16 and takes_head and torch.cuda.get_device_capability(device) >= FIRST_CAPABILITY


def document_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer; query, key and value are (rows, heads, sequence_length, size of a head).

    `attention_mask`: as `as_mask` gives it; without, each row is a document. Returns (rows, sequence_length, heads,
    size). Raises ValueError where it is asked for what the kernels cannot do.
    """
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if others.get(name) is not None]
    if dropout or unknown:
        raise ValueError(f"attention within documents without a mask has no {unknown or 'dropout'}")
    rows, _, length, _ = query.shape
    if attention_mask is None:
        boundaries = torch.arange(0, rows * length + 1, length, dtype=torch.int32, device=query.device)
    else:
        boundaries = attention_mask.flatten()
    device = query.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    window = sliding_window if sliding_window and sliding_window < length else 0
    query, key, value = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))
    if device == "cpu":
        output, _ = _on_cpu(query, key, value, boundaries, window, scaling)
    else:
        sizes, sides = (length, length), (window - 1 if window else -1, 0)
        output = varlen_attn(
            query, key, value, boundaries, boundaries, *sizes, scale=scaling, window_size=sides, enable_gqa=True
        )
    return output.unflatten(0, (rows, length)), None


@torch.library.custom_op("parrotflow::document_attention", mutates_args=(), device_types="cpu")
def _on_cpu(
    query: Tensor, key: Tensor, value: Tensor, boundaries: Tensor, window: int, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Query, key and value are (tokens, heads, size). The output, and the logsumexp of its scores (heads, tokens)."""
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    logsumexp = query.new_empty((query.shape[1], query.shape[0]), dtype=torch.float32)
    for tokens, mask in _documents(boundaries, window, query):
        own = (_of_document(tensor, tokens) for tensor in (query, key, value))
        found, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *own, 0.0, mask is None, attn_mask=mask, scale=scale
        )
        output[tokens] = found[0].transpose(0, 1)
        logsumexp[:, tokens] = sums[0]
    return output, logsumexp


@_on_cpu.register_fake
def _shapes(
    query: Tensor, key: Tensor, value: Tensor, boundaries: Tensor, window: int, scale: float | None
) -> tuple[Tensor, Tensor]:
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    return output, query.new_empty((query.shape[1], query.shape[0]), dtype=torch.float32)


@torch.library.custom_op("parrotflow::document_attention_backward", mutates_args=(), device_types="cpu")
def _backward_on_cpu(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    boundaries: Tensor,
    window: int,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor, Tensor] = _gradient_shapes(gradient, query, key, value)
    for tokens, mask in _documents(boundaries, window, query):
        own = (_of_document(tensor, tokens) for tensor in (gradient, query, key, value, output))
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *own, logsumexp[None, :, tokens].contiguous(), 0.0, mask is None, attn_mask=mask, scale=scale
        )
        for whole, of_document in zip(gradients, found, strict=True):
            whole[tokens] = of_document[0].transpose(0, 1)
    return gradients


@_backward_on_cpu.register_fake
def _gradient_shapes(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    of_query, of_key, of_value = (
        torch.empty_like(one, memory_format=torch.contiguous_format) for one in (query, key, value)
    )
    return of_query, of_key, of_value


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, boundaries, ctx.window, ctx.scale = inputs
    ctx.save_for_backward(query, key, value, *output, boundaries)


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    gradients = _backward_on_cpu(gradient, *ctx.saved_tensors, ctx.window, ctx.scale)
    return (*gradients, None, None, None)


_on_cpu.register_autograd(_backward, setup_context=_keep)


def _documents(boundaries: Tensor, window: int, query: Tensor) -> Iterator[tuple[slice, Tensor | None]]:
    """The tokens of each document; with a mask where it is longer than a window, which the kernel does not know."""
    for start, stop in pairwise(boundaries.tolist()):
        mask = None
        if window and stop - start > window:
            seen = query.new_ones((stop - start, stop - start), dtype=torch.bool).tril().triu(1 - window)
            mask = query.new_zeros(seen.shape).masked_fill_(~seen, float("-inf"))
        yield slice(start, stop), mask


def _of_document(tensor: Tensor, tokens: slice) -> Tensor:
    """(1, heads, tokens, size)"""
    return tensor[tokens].transpose(0, 1)[None]
