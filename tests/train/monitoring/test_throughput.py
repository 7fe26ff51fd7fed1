"""What a GPU can do at most: that of its own kind, in the precision of the run."""

import pytest
import torch

from stages.train.monitoring.throughput import peak_flops
from stages.train.optim.settings import Precision


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA H100 NVL", "bf16", 835e12),
        ("NVIDIA H100 80GB HBM3", "fp32", 67e12),
        ("Tesla V100-SXM2-16GB", "fp32", 15.7e12),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("NVIDIA T1000", "fp32", None),
    ],
)
def test_the_peak_is_of_the_kind_and_the_precision(
    monkeypatch: pytest.MonkeyPatch, name: str, precision: Precision, peak: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_flops(torch.device("cuda"), precision) == peak
    assert peak_flops(torch.device("cpu"), precision) is None
