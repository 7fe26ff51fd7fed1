"""Gradients with the same bits on any number of processes: `train.deterministic_micro_batch_size`.

M micro-batches of a fixed size are summed as a full binary tree over their index. Process r of W holds a contiguous
block of M / W, which is a subtree (both are powers of two). Each process gathers the subtrees' sums and adds them in
the order of the upper tree.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn

Gradients = list[Tensor]


class DeterministicReduce:
    """Like `parallel.AllReduce`, but sums in a fixed order."""

    scale = 1

    def __init__(self, model: nn.Module, accelerator: Accelerator) -> None:
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.accelerator = accelerator
        self.tree = BinaryTree()

    def micro_batch(self, is_last: bool) -> AbstractContextManager[None]:
        """Nothing is exchanged before `finish`."""
        return nullcontext()

    def collect(self, losses: Tensor) -> None:
        """Move a micro-batch's gradients and losses into the tree."""
        self.tree.add([*(cast(Tensor, parameter.grad) for parameter in self.trained), losses])
        for parameter in self.trained:
            parameter.grad = None

    def finish(self, vote: Tensor) -> tuple[Tensor, Tensor]:
        """As `parallel.AllReduce.finish`."""
        *gradients, losses = sum_over_processes(self.tree.result())
        for parameter, gradient in zip(self.trained, gradients, strict=True):
            parameter.grad = gradient
        return losses, self.accelerator.reduce(vote, "sum")[0]


class BinaryTree:
    """Sums tensors in order of arrival as a full binary tree, like the carries of a binary counter."""

    def __init__(self) -> None:
        self._subtrees: list[tuple[int, Gradients]] = []

    def add(self, gradients: Gradients) -> None:
        """Add the next summand, which may be changed in place."""
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
    """The tree's upper part: the sum over all processes, with the same bits in each."""
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
