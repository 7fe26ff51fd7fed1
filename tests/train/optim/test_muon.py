"""Muon's arithmetic: torch's bits in bf16, and orthogonal updates."""

import pytest
import torch

from stages.train.optim.muon import Muon, orthogonalise


@pytest.mark.parametrize("shape", [(16, 48), (48, 16), (16, 16)])
def test_muon_in_bf16_has_the_bits_of_torchs(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(shape), torch.randn(3, *shape)
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    own = Muon([ours], 0.01, momentum=0.95, weight_decay=0.1, dtype=torch.bfloat16)
    other = torch.optim.Muon([theirs], 0.01, momentum=0.95, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for gradient in gradients:
        for parameter, optimizer in ((ours, own), (theirs, other)):
            parameter.grad = gradient.clone()
            optimizer.step()
    assert torch.equal(ours, theirs)


def test_all_singular_values_are_moved_near_one() -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(40, 20), torch.float32))
    assert values.min() > 0.5
    assert values.max() < 1.3
