"""The sum of gradients with the same bits on any number of processes.

Floating-point addition is not associative, so a sum's bits depend on its order, and the order of a backend's all-reduce
on the number of processes. Here the micro-batches are fixed by the parameters and summed as a full binary tree over
their index. Process r of W holds a contiguous block of M / W micro-batches, a subtree (both are powers of two); the
subtrees' sums are gathered and summed by the upper part of the tree, the same everywhere.
"""

import torch
import torch.distributed as dist
from torch import Tensor

Gradients = list[Tensor]


class DeterministicSum:
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
        tree = DeterministicSum()
        for part in gathered:
            tree.add([part])
        total.append(tree.result()[0])
    return total
