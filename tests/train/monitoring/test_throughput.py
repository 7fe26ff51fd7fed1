"""How fast a run is, and what a GPU can do at most."""

import time

import pytest
import torch

from stages.train.compute.optim.settings import Precision
from stages.train.monitoring.throughput import Throughput, peak_flops


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989e12),
        ("Tesla V100-SXM2-16GB", "fp32", 15.7e12),
        ("NVIDIA RTX A1000 Laptop GPU", "bf16", None),  # no A100
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "bf16", None),  # a seventh of one
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "fp32", None),
        ("Tesla V100-PCIE-16GB", "fp32", 14e12),
    ],
)
def test_the_peak_is_of_the_kind_and_the_precision(
    monkeypatch: pytest.MonkeyPatch, name: str, precision: Precision, peak: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_flops(torch.device("cuda"), precision) == peak
    assert peak_flops(torch.device("cpu"), precision) is None


def test_what_was_timed_before_a_restart_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler works in the first step: 1,000 tokens in 100 s, then 500 in 5 s."""
    throughput = Throughput(1, None, tokens=1000, began=0.0)
    monkeypatch.setattr(time, "perf_counter", lambda: 100.0)
    throughput.restart()
    throughput.tokens += 500
    monkeypatch.setattr(time, "perf_counter", lambda: 105.0)
    assert throughput.tokens_per_second == pytest.approx(100)
