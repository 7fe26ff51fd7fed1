"""Muon's arithmetic: torch's bits in bf16, orthogonal updates, and stacks of matrices."""

import pytest
import torch

from stages.train.optim.muon import STACKED, muon_of, orthogonalise, orthogonalise_all, stacks

SETTINGS = {"lr": 0.01, "momentum": 0.95, "weight_decay": 0.1}


@pytest.mark.parametrize("shape", [(16, 48), (48, 16), (16, 16)])
def test_muon_in_bf16_has_the_bits_of_torchs(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(shape), torch.randn(3, *shape)
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    own = muon_of([ours], SETTINGS, torch.bfloat16)
    other = torch.optim.Muon([theirs], 0.01, momentum=0.95, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for gradient in gradients:
        for parameter, optimizer in ((ours, own), (theirs, other)):
            parameter.grad = gradient.clone()
            optimizer.step()
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("shape", [(3, 16, 48), (3, 48, 16), (3, 16, 16)])
def test_a_stack_is_updated_as_its_matrices_are_one_by_one(shape: tuple[int, int, int]) -> None:
    """The last has no gradient but zeros, as an expert to which no token was sent."""
    torch.manual_seed(0)
    start, gradients = torch.randn(shape), torch.randn(3, *shape)
    gradients[:, -1] = 0
    stack = torch.nn.Parameter(start.clone())
    alone = [torch.nn.Parameter(matrix.clone()) for matrix in start]
    both = [muon_of(weights, SETTINGS, torch.float32) for weights in ([stack], alone)]
    for gradient in gradients:
        stack.grad = gradient.clone()
        for matrix, own in zip(alone, gradient, strict=True):
            matrix.grad = own.clone()
        for optimizer in both:
            optimizer.step()
    torch.testing.assert_close(stack.detach(), torch.stack([matrix.detach() for matrix in alone]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(40, 20), (128, 384), (4, 16, 48)])
def test_the_singular_values_of_a_matrix_that_is_far_from_square_are_moved_near_one(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(shape), torch.float32))
    assert values.min() > 0.68
    assert values.max() < 1.14


def test_of_a_square_matrix_the_smallest_singular_values_stay_small_and_none_exceeds_1_21() -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(20, 64, 64), torch.float32))
    assert values.min() < 0.1
    assert values.max() < 1.21


@pytest.mark.parametrize("shape", [(16, 48), (48, 16), (3, 16, 24)])
def test_tensors_of_one_shape_are_orthogonalised_together_as_they_are_one_by_one(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    updates = [torch.randn(shape) for _ in range(3)]
    for together, one in zip(orthogonalise_all(updates, torch.float32), updates, strict=True):
        torch.testing.assert_close(together, orthogonalise(one, torch.float32), rtol=0, atol=1e-5)


def test_on_a_gpu_matrices_of_one_shape_are_taken_together_up_to_a_limit() -> None:
    shapes = [(64, 64), (64, 128), (64, 64), (8192, 4096), (8192, 4096), (8192, 4096)]
    elsewhere = [torch.empty(shape, device="meta") for shape in shapes]
    taken = stacks(elsewhere)
    assert [[tuple(matrix.shape) for matrix in stack] for stack in taken] == [
        [(64, 64), (64, 64)],
        [(64, 128)],
        [(8192, 4096), (8192, 4096)],
        [(8192, 4096)],
    ]
    assert all(sum(matrix.numel() for matrix in stack) <= STACKED for stack in taken)
    assert len(stacks(torch.empty(2, 2) for _ in range(5))) == 5
