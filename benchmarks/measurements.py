"""How every benchmark measures and records: sides interleaved in one process tree, medians and spread.

A benchmark is one module: `python -m benchmarks.NAME` (`--quick` for about a minute). It prints a table and writes
`benchmarks/results/NAME.json`, a list of `Measurement`; `python -m benchmarks` runs all and renders docs/measured.md.
"""

import json
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement, with its peer's where there is one."""

    figure: str
    """What was measured, in words."""
    ours: float
    """The median of our runs."""
    peer: float | None
    """The median of the peer's runs, in the same unit."""
    peer_name: str
    """Who the peer is, with its version; empty where there is none."""
    unit: str
    """e.g. `tokens/s` or `s`."""
    ratio: float | None
    """Above 1 where ours is better."""
    runs: int
    """Runs of each side."""
    spread: float
    """(highest - lowest) / median of our runs."""
    machine: str
    """Processor, its kind and cores; accelerator where one was used."""
    versions: dict[str, str]
    """Distribution -> version of what the figure depends on."""


def interleave(sides: Mapping[str, Callable[[], float]], runs: int) -> dict[str, list[float]]:
    """Run the sides in turn, `runs` times each, so that a slow minute of the machine hits all of them."""
    results: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(runs):
        for name, measure in sides.items():
            results[name].append(measure())
    return results


def compare(
    figure: str,
    ours: Iterable[float],
    peer: Iterable[float] | None,
    *,
    peer_name: str = "",
    unit: str,
    higher_is_better: bool,
    libraries: Iterable[str] = (),
    accelerator: str = "",
) -> Measurement:
    """Medians, spread and ratio of two series of measurements in `unit`."""
    series = sorted(ours)
    middle = statistics.median(series)
    other = statistics.median(peer) if peer is not None else None
    ratio = None
    if other is not None:
        ratio = middle / other if higher_is_better else other / middle
    return Measurement(
        figure=figure,
        ours=middle,
        peer=other,
        peer_name=peer_name,
        unit=unit,
        ratio=ratio,
        runs=len(series),
        spread=(series[-1] - series[0]) / middle if middle else 0.0,
        machine=", ".join(filter(None, [machine(), accelerator])),
        versions={name: version(name) for name in libraries} | {"python": platform.python_version()},
    )


def machine() -> str:
    """The processor's name and the cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), [])
    return ", ".join(filter(None, [names[0] if names else platform.machine(), cpu_kind(flags), f"{cores} cores"]))


def cpu_kind(flags: Iterable[str]) -> str:
    """What the speed of matrix products depends on: the widest instructions among the kernel's flags of an x86 CPU."""
    known = {"amx_bf16": "AMX", "avx512f": "AVX-512 without AMX", "avx2": "AVX2"}
    return next((kind for flag, kind in known.items() if flag in set(flags)), "")


def record(name: str, figures: list[Measurement], results: Path = RESULTS) -> None:
    """Print the figures as a table and write them to `results/NAME.json`."""
    results.mkdir(exist_ok=True)
    (results / f"{name}.json").write_text(json.dumps([asdict(figure) for figure in figures], indent=1) + "\n")
    table = Table(title=name)
    for heading in ("figure", "ours", "peer", "ratio", "runs", "spread"):
        table.add_column(heading)
    for figure in figures:
        peer = "" if figure.peer is None else f"{figure.peer:.4g} {figure.unit} ({figure.peer_name})"
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        ours = f"{figure.ours:.4g} {figure.unit}"
        table.add_row(figure.figure, ours, peer, ratio, str(figure.runs), f"{figure.spread:.0%}")
    Console().print(table)
