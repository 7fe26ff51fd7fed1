"""How a step's gradients are summed over micro-batches and processes: by the backend, or as a fixed tree.

Floating-point addition is not associative, so a sum's bits depend on its order, and the order of a backend's all-reduce
on the number of processes. In the tree the micro-batches are fixed by the parameters and summed as a full binary tree
over their index. Process r of W holds a contiguous block of M / W micro-batches, a subtree (both are powers of two);
the subtrees' sums are gathered and summed by the upper part of the tree, the same everywhere.
"""

from collections.abc import Callable
from typing import Protocol, cast

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn

from stages.train.distributed.parallel import exchange_gradients
from stages.train.params import TrainParams

Gradients = list[Tensor]

StepLosses = Tensor
"""(2,): as `CausalLoss` returns them, divided by the targets of the step's global batch."""


class GradientSum(Protocol):
    """The gradients of one step."""

    def add(self, losses: Callable[[], StepLosses], is_last: bool) -> None:
        """Forward and backward of a micro-batch; `is_last`: of this process's ones."""

    def finish(self, asked_to_stop: Tensor) -> tuple[StepLosses, Tensor]:
        """Leave the sum over all processes in the parameters' `grad`.

        Returns the losses of the global batch, and the sum of the votes: one exchange serves both.
        """


def gradient_sum(params: TrainParams, model: nn.Module, accelerator: Accelerator) -> GradientSum:
    """Of a step that begins."""
    fixed_order = params.deterministic_micro_batch_size is not None
    return TreeSum(model, accelerator) if fixed_order else BackendSum(model, accelerator)


class BackendSum:
    """As DDP or FSDP sum them, in the order that suits the backend."""

    def __init__(self, model: nn.Module, accelerator: Accelerator) -> None:
        self.model = model
        self.accelerator = accelerator
        self.losses = torch.zeros(2, device=accelerator.device)

    def add(self, losses: Callable[[], StepLosses], is_last: bool) -> None:
        """Gradients are exchanged once per step, in the last backward pass."""
        with exchange_gradients(self.model, enabled=is_last):
            part = losses()
            # DDP and FSDP average gradients over processes; the loss is a sum over the global batch.
            torch.autograd.backward(part.sum() * self.accelerator.num_processes)
        self.losses += part.detach()

    def finish(self, asked_to_stop: Tensor) -> tuple[StepLosses, Tensor]:
        """The gradients are summed by now."""
        reduced = self.accelerator.reduce(torch.cat([self.losses, asked_to_stop]), "sum")
        return reduced[:2], reduced[2]


class TreeSum:
    """With the same bits on any number of processes (`train.deterministic_micro_batch_size`)."""

    def __init__(self, model: nn.Module, accelerator: Accelerator) -> None:
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.accelerator = accelerator
        self.tree = BinaryTree()

    def add(self, losses: Callable[[], StepLosses], is_last: bool) -> None:
        """Its losses are a leaf of the tree like its gradients."""
        part = losses()
        torch.autograd.backward(part.sum())
        self.tree.add([*(cast(Tensor, parameter.grad) for parameter in self.trained), part.detach()])
        for parameter in self.trained:
            parameter.grad = None

    def finish(self, asked_to_stop: Tensor) -> tuple[StepLosses, Tensor]:
        """Sum the subtrees of all processes."""
        *gradients, losses = sum_over_processes(self.tree.result())
        for parameter, gradient in zip(self.trained, gradients, strict=True):
            parameter.grad = gradient
        return losses, self.accelerator.reduce(asked_to_stop, "sum")[0]


class BinaryTree:
    """Adds summands in the order in which they come, as a full binary tree, like the carries of a binary counter."""

    def __init__(self) -> None:
        self._subtrees: list[tuple[int, Gradients]] = []

    def add(self, gradients: Gradients) -> None:
        """Take the next summand; it may be changed in place."""
        height = 0
        while self._subtrees and self._subtrees[-1][0] == height:
            _, left = self._subtrees.pop()
            gradients = [a.add_(b) for a, b in zip(left, gradients, strict=True)]
            height += 1
        self._subtrees.append((height, gradients))

    def result(self) -> Gradients:
        """The sum of all summands, whose number must be a power of two."""
        if len(self._subtrees) != 1:
            raise ValueError("a full binary tree has 1, 2, 4, 8, ... leaves")
        return self._subtrees[0][1]


def sum_over_processes(own: Gradients) -> Gradients:
    """The tree's upper part: the sum of all processes' sums, with the same bits in each of them."""
    processes = dist.get_world_size() if dist.is_initialized() else 1
    if processes == 1:
        return own
    total = []
    for gradient in own:
        gathered = [torch.empty_like(gradient) for _ in range(processes)]
        dist.all_gather(gathered, gradient)
        tree = BinaryTree()
        for part in gathered:
            tree.add([part])
        total.append(tree.result()[0])
    return total
