"""Muon (Jordan et al. 2024): momentum whose updates are orthogonalised, for the hidden matrices; AdamW for the rest.

`torch.optim.Muon` always orthogonalises in bf16. On CPUs without fast bf16 that takes longer than the rest of the step
(GPT-2 of 4 layers, AVX2: 6 s against 0.16 s in fp32), so here the precision is a parameter. In bf16 the updates equal
torch's bit for bit.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic Newton-Schulz iteration: its slope at 0 makes small singular values grow fast."""

ITERATIONS = 5

MAX_STACKED_VALUES = 2**26
"""Values of the matrices that a GPU orthogonalises together: 128 MiB in bf16, with temporaries a few times that."""


class Muon(torch.optim.Optimizer):
    """SGD with Nesterov momentum and orthogonalised updates over matrices, or stacks of them (experts, m, n)."""

    def __init__(
        self, params: Iterable[Any], lr: float, momentum: float, precision: str, weight_decay: float = 0.0
    ) -> None:
        """`precision`, bf16 or fp32, is that of the orthogonalisation; weight decay is decoupled."""
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update every matrix that has a gradient. A `closure` is not supported.

        The rate is scaled so that updates are as large as AdamW's (Liu et al. 2025, "Muon is Scalable for LLM
        Training", section 2.2).
        """
        assert closure is None
        for group in self.param_groups:
            for matrices in stacks(matrix for matrix in group["params"] if matrix.grad is not None):
                updates = [momentum_update(matrix, self.state[matrix], group["momentum"]) for matrix in matrices]
                for matrix, update in zip(matrices, orthogonalise_all(updates, self.dtype), strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.add_(update, alpha=-group["lr"] * (0.2 * math.sqrt(max(matrix.shape[-2:]))))


def stacks(matrices: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group matrices to orthogonalise together: on a GPU those of equal shape, up to `MAX_STACKED_VALUES` values.

    On a GPU a batch of products takes the time of one. A CPU gains nothing, and its last bits would change.
    """
    by_shape: dict[tuple[int, ...], list[list[Tensor]]] = {}
    for matrix in matrices:
        of_shape = by_shape.setdefault(tuple(matrix.shape), [[]])
        count = max(1, MAX_STACKED_VALUES // matrix.numel()) if matrix.device.type != "cpu" else 1
        if len(of_shape[-1]) == count:
            of_shape.append([])
        of_shape[-1].append(matrix)
    return [stack for of_shape in by_shape.values() for stack in of_shape]


def momentum_update(matrix: Tensor, state: dict[str, Tensor], momentum: float) -> Tensor:
    """Nesterov momentum: the gradient, moved towards its running mean, which is updated first."""
    gradient = matrix.grad
    assert gradient is not None
    if "momentum_buffer" not in state:
        state["momentum_buffer"] = torch.zeros_like(gradient)
    buffer = state["momentum_buffer"]
    buffer.lerp_(gradient, 1 - momentum)
    return gradient.lerp(buffer, momentum)


def orthogonalise_all(updates: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Apply `orthogonalise` to tensors of equal shape in one batch. Of sharded tensors each process keeps its shard.

    Shards are gathered once, in `dtype`; otherwise each product of the iteration would be an exchange.
    """
    cast = (update.to(dtype) for update in updates)
    whole = [update.full_tensor() if isinstance(update, DTensor) else update for update in cast]
    if len(whole) == 1:
        done = [orthogonalise(whole[0], dtype)]
    else:
        stacked = torch.stack(whole)
        done = list(orthogonalise(stacked.flatten(0, -3), dtype).view_as(stacked))
    return [
        # With no source rank each process slices its own copy, and nothing is sent.
        distribute_tensor(result, update.device_mesh, update.placements, src_data_rank=None)
        if isinstance(update, DTensor)
        else result
        for result, update in zip(done, updates, strict=True)
    ]


def orthogonalise(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """Move the singular values of matrices (..., m, n) towards 1, computing in `dtype`.

    Five iterations are too few for singular values that are small relative to the norm. Those of Gaussian matrices of
    20 x 40 and 128 x 384 all end between 0.68 and 1.14; in square ones the smallest stay near 0 (64 x 64: 0.01), and
    none exceeds 1.21.
    """
    a, b, c = COEFFICIENTS
    wide = matrices.to(dtype)
    tall = wide.shape[-2] > wide.shape[-1]
    if tall:
        wide = wide.mT  # makes the Gram matrix smaller
    # Stacks use batched products; a single matrix uses the calls of torch's Muon, for equal bits.
    stacked = wide.ndim > 2
    multiply_add = torch.baddbmm if stacked else torch.addmm
    # The iteration converges for singular values up to 1, and this norm bounds them.
    norm = wide.norm(dim=(-2, -1), keepdim=True) if stacked else wide.norm()
    wide = wide / norm.clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = wide @ wide.mT
        wide = multiply_add(wide, multiply_add(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.mT if tall else wide
