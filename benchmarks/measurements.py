"""How every benchmark measures and records: sides interleaved in one process tree, medians and spread.

A benchmark is one module: `python -m benchmarks.NAME` (`--quick` for about a minute). It prints a table and writes
`benchmarks/results/NAME.json`, a list of `Measurement`; `python -m benchmarks` runs all and renders
docs/reference/measured.md.
"""

import json
import math
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table
from scipy.stats import quantile_test

from stages.formats.pages import markdown_table
from stages.runtime.workers import cpu_facts

ROOT = Path(__file__).parents[1]

RESULTS = ROOT / "benchmarks/results"

MAX_SPREAD = 0.20
"""A figure that varies more is called unsure."""


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
    ratio_interval: tuple[float, float] | None = None
    """A 95 % interval of the median ratio of runs next to each other: a machine whose speed changes during the
    measurement changes both sides of such a pair. None where there are too few runs."""
    commit: str = ""
    """The commit of parrotflow that was measured, with `-dirty` after it if files differed; empty until recorded."""

    @property
    def ratio_text(self) -> str:
        """The ratio with its interval, as far as they are there."""
        if self.ratio is None:
            return ""
        interval = "" if self.ratio_interval is None else " ({:.2f} to {:.2f})".format(*self.ratio_interval)
        return f"{self.ratio:.2f}{interval}"


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
    """Medians, spread and ratio of two series of measurements in `unit`; series of equal length were taken in turn."""
    series, others = list(ours), None if peer is None else list(peer)
    middle = statistics.median(series)
    other = None if others is None else statistics.median(others)

    def ratio(mine: float, its: float) -> float:
        return mine / its if higher_is_better else its / mine

    in_turn = others is not None and len(others) == len(series)
    return Measurement(
        figure=figure,
        ours=middle,
        peer=other,
        peer_name=peer_name,
        unit=unit,
        ratio=None if other is None else ratio(middle, other),
        runs=len(series),
        spread=(max(series) - min(series)) / middle if middle else 0.0,
        machine=", ".join(filter(None, [machine(), accelerator])),
        versions={name: version(name) for name in libraries} | {"python": platform.python_version()},
        ratio_interval=median_interval(map(ratio, series, others or [])) if in_turn else None,
    )


def median_interval(values: Iterable[float]) -> tuple[float, float] | None:
    """A 95 % interval of the median, of any distribution; None of fewer than six values."""
    low, high = quantile_test(list(values)).confidence_interval(0.95)
    return (float(low), float(high)) if math.isfinite(low + high) else None


CPU_KINDS: Mapping[str, Mapping[str, str]] = {
    "AMX": {},
    "AVX-512 without AMX": {
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512_E4",
        "ATEN_CPU_CAPABILITY": "avx512",
    },
    "AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
}
"""Kinds of x86 CPU by what the speed of matrix products depends on, widest first, and the libraries' own switches
(oneDNN, MKL, torch and its compiler) that limit a wider CPU to each."""


def machine() -> str:
    """The processor's name and the cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    name = next(cpu_facts("model name"), platform.machine())
    return ", ".join(filter(None, [name, machine_kind(), f"{cores} cores"]))


def machine_kind() -> str:
    """This machine's kind of CPU, one of `CPU_KINDS`; empty where it is none of them."""
    return cpu_kind(next(cpu_facts("flags"), "").split())


def cpu_kind(flags: Iterable[str]) -> str:
    """The kind of an x86 CPU by the widest instructions among the kernel's flags."""
    known = dict(zip(("amx_bf16", "avx512f", "avx2"), CPU_KINDS, strict=True))
    return next((kind for flag, kind in known.items() if flag in set(flags)), "")


def commit() -> str:
    """The commit of the code that runs, with `-dirty` after it if files differ."""
    command = ["git", "describe", "--always", "--abbrev=8", "--dirty", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def recorded(name: str, results: Path = RESULTS) -> list[Measurement]:
    """The figures on record of a benchmark; none where it was never run."""
    path = results / f"{name}.json"
    return [Measurement(**values) for values in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []


def record(name: str, figures: list[Measurement], results: Path = RESULTS, *, quick: bool) -> None:
    """Print the figures as a table and write them to `results/NAME.json`; those of a quick run are only printed.

    A figure that an earlier run has recorded keeps its commit.
    """
    if not quick:
        results.mkdir(exist_ok=True)
        here = commit()
        lines = ",\n".join(json.dumps(asdict(replace(figure, commit=figure.commit or here))) for figure in figures)
        (results / f"{name}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    table = Table(title=name)
    for heading in ("figure", "ours", "peer", "ratio", "runs", "spread"):
        table.add_column(heading)
    for figure in figures:
        peer = "" if figure.peer is None else f"{figure.peer:.4g} {figure.unit} ({figure.peer_name})"
        ours = f"{figure.ours:.4g} {figure.unit}"
        table.add_row(figure.figure, ours, peer, figure.ratio_text, str(figure.runs), f"{figure.spread:.0%}")
    Console().print(table)


def markdown(figures: list[Measurement]) -> list[str]:
    """A table with a row for each figure, a column for ours and each peer; below it machines, versions and commits.

    Of names `PART: FIGURE` each part has a column instead.
    """
    parts = all(": " in figure.figure and figure.peer is None for figure in figures)
    cells: dict[str, dict[str, str]] = {}
    for figure in figures:
        column, _, row = figure.figure.partition(": ") if parts else ("ours", "", figure.figure)
        unsure = f" (unsure: {figure.spread:.0%})" if figure.spread > MAX_SPREAD else ""
        of_row = cells.setdefault(row, {})
        of_row[column] = f"{in_digits(figure.ours)} {figure.unit}".rstrip() + unsure
        if figure.peer is not None:
            of_row[figure.peer_name] = f"{in_digits(figure.peer)} ({figure.ratio_text})"
    columns = list(dict.fromkeys(column for of_row in cells.values() for column in of_row))
    rows = [[name, *(of_row.get(column, "") for column in columns)] for name, of_row in cells.items()]
    versions = dict.fromkeys(f"{name} {number}" for figure in figures for name, number in figure.versions.items())
    commits = dict.fromkeys(f"commit {figure.commit}" for figure in figures if figure.commit)
    machines = dict.fromkeys(figure.machine for figure in figures)
    foot = f"On {'; '.join(machines)}. {', '.join([*versions, *commits])}."
    heading, alignment, *lines = markdown_table(["figure", *columns], rows).splitlines()
    return [heading, alignment.replace(" ", ""), *lines, "", foot]


def in_digits(value: float) -> str:
    """Four significant digits, thousands with commas."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
