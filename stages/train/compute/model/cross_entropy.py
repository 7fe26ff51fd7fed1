"""The cross-entropy of hidden states and an output matrix, without all logits at once.

The logits of a batch are its largest tensor. The forward pass therefore computes logits, loss and gradients for a few
thousand tokens at a time, and the backward pass only scales the gradients (Hsu et al. 2024, "Liger Kernel", section
3.2). In fp32 this is torch's `functional.linear_cross_entropy`, as fast as ours and closer to the exact gradients; it
causes one graph break per micro-batch. In bf16 torch 2.13 sums the losses in bf16, which is wrong by 0.1 nats per
token; ours sums in fp32.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ROWS_PER_WIDTH = {torch.bfloat16: 4, torch.float32: 2}
"""Tokens at once on a CPU, per unit of the head's width. More tokens mean fewer sums of the head's gradient, and more
memory. In bf16 on CPUs with AMX 4 was the fastest tried at widths of 256 and 512, and 2.7 at 768. In fp32 torch's
default is too few: 128 of 4,096 tokens for a head of 4,096 x 256, which is 10 to 25 % slower, and 16 of 2,048 tokens
for a head of 50,257 x 768, which takes three times as long."""

MAX_GPU_LOGITS = 2**28
"""Logits at once on a GPU: 1 GiB in fp32; without the compiler about five such tensors exist at a time. Four times as
many took 2.6 GiB more on an H200 (GPT-2 124M), at the same speed."""

MIN_GPU_ROWS = 1024
"""Least number of tokens at once on a GPU: fewer would leave its matrix units idle."""


def rows_at_once(device_type: str, vocabulary: int, width: int, dtype: torch.dtype) -> int:
    """Tokens whose logits are computed together."""
    if device_type == "cpu":
        return ROWS_PER_WIDTH[dtype] * width
    return max(MIN_GPU_ROWS, MAX_GPU_LOGITS // vocabulary)


def linear_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
    """The cross-entropy of `hidden @ weight.T` summed over all targets, in nats.

    `hidden` is (tokens, width), `weight` (vocabulary, width), `targets` (tokens); products are taken in `dtype`.
    """
    vocabulary, width = weight.shape
    rows = rows_at_once(hidden.device.type, vocabulary, width, dtype)
    if dtype == torch.float32:
        # Graphs are not retained; the option only silences a warning of torch's compiler.
        options = nn.LinearCrossEntropyOptions(allow_retain_graph=torch.compiler.is_compiling(), batch_chunk_size=rows)
        return functional.linear_cross_entropy(hidden, weight, targets, reduction="sum", options=options)
    total: Tensor
    if torch.is_grad_enabled():
        total = _LinearCrossEntropy.apply(hidden, weight, targets, dtype, rows)  # type: ignore[no-untyped-call]
        return total
    hidden, weight = hidden.to(dtype), weight.to(dtype)
    total = torch.zeros((), device=hidden.device)
    for part, wanted in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):
        logits = functional.linear(part, weight).float()
        total = total + functional.cross_entropy(logits, wanted, reduction="sum")
    return total


class _LinearCrossEntropy(torch.autograd.Function):
    """Loss and gradients in one pass; the gradient of the head is summed in fp32."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype, rows: int) -> Tensor:
        head = weight.to(dtype)
        vocabulary = torch.arange(len(weight), device=weight.device)
        total = torch.zeros((), device=weight.device)
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32)
        hidden_gradients = []
        for part, wanted in zip(torch.split(hidden.to(dtype), rows), torch.split(targets, rows), strict=True):
            log_probabilities = torch.log_softmax(functional.linear(part, head).float(), dim=-1)
            total = total + functional.nll_loss(log_probabilities, wanted, reduction="sum")
            # No scatter: with deterministic algorithms it would break the compiled graph.
            hit = (vocabulary == wanted[:, None]).float()
            gradient = (log_probabilities.exp() - hit).to(dtype)
            hidden_gradients.append(gradient @ head)
            weight_gradient = weight_gradient + (gradient.t() @ part).float()
        ctx.save_for_backward(torch.cat(hidden_gradients), weight_gradient)
        ctx.hidden_dtype = hidden.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        (scale,) = upstream
        return hidden_gradient.to(ctx.hidden_dtype) * scale, weight_gradient * scale, None, None, None
