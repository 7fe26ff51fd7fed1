"""Run every benchmark and render the page docs/reference/measured.md.

Run: `python -m benchmarks [--quick] [--render-only] [NAME ...]`.
"""

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

from benchmarks.measurements import Measurement, recorded

PAGE = Path(__file__).parents[1] / "docs/reference/measured.md"
NOT_BENCHMARKS = {"__init__", "__main__", "measurements"}

MOST_SPREAD = 0.20
"""Of a figure that is not called unsure."""

MOST_COLUMNS = 3
"""Peers that get a column each, where they are more than the figures."""


def names() -> list[str]:
    """The benchmarks, by their modules."""
    return sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - NOT_BENCHMARKS)


def render() -> str:
    """The page of every figure on record. A benchmark without a result is said to be unmeasured."""
    results = {name: recorded(name) for name in names()}
    everywhere = common([figures for figures in results.values() if figures])
    lines = [
        "# Measured",
        "",
        "`python -m benchmarks.NAME` measures a section again, `make bench` all: both sides in turn in one run, "
        "medians. In a peer's column (2.00; low to high) says that ours is twice as good, with a 95 % interval of the "
        "median ratio of runs next to each other.",
        "",
        f"The spread is (highest - lowest) / median of our runs; above {MOST_SPREAD:.0%} a figure is unsure. "
        "[The records](../../benchmarks/results/) have each figure's runs and spread. Where no runs are given it is "
        "one, and where no kind of CPU is, it was not recorded.",
        "",
        f"Unless a section says otherwise: {', '.join(everywhere)}.",
    ]
    for name, figures in results.items():
        lines += ["", f"## {name}", ""]
        lines += table(figures, everywhere) if figures else ["Not yet measured."]
    return "\n".join(lines) + "\n"


def common(results: Collection[list[Measurement]]) -> list[str]:
    """Parts of the machine that all figures have, and libraries of which several results depend on one version."""
    figures = [figure for result in results for figure in result]
    parts = set.intersection(*(set(figure.machine.split(", ")) for figure in figures))
    named = Counter(name for result in results for name in {name for figure in result for name in figure.versions})
    versions = {item for figure in figures for item in figure.versions.items()}
    count = Counter(name for name, _ in versions)
    return sorted(parts) + sorted(f"{name} {number}" for name, number in versions if count[name] == 1 < named[name])


def table(figures: list[Measurement], everywhere: Collection[str] = ()) -> list[str]:
    """One result as a Markdown table, under it the machine, runs and versions.

    A row for each figure, a column for each peer; the other way round where peers are more. What is `everywhere` is not
    said.
    """
    peers = list(dict.fromkeys(figure.peer_name for figure in figures if figure.peer is not None))
    rows = [["figure", "ours", *peers]]
    for name, measured in by(figures, lambda figure: figure.figure).items():
        of_peers = {figure.peer_name: peer_and_ratio(figure) for figure in measured}
        rows.append([name, ours(measured[0]), *(of_peers.get(peer, "") for peer in peers)])
    if len(peers) > max(len(rows) - 1, MOST_COLUMNS):
        rows = [list(column) for column in zip(*rows, strict=True)]
    lines = [f"| {' | '.join(rows[0])} |", "|---" + "|--:" * (len(rows[0]) - 1) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in rows[1:]]
    for machine, measured in by(figures, lambda figure: figure.machine).items():
        lines += ["", foot(machine, measured, everywhere)]
    return lines


def ours(figure: Measurement) -> str:
    """Our value, and that it is unsure."""
    unsure = f" (unsure: {figure.spread:.0%})" if figure.spread > MOST_SPREAD else ""
    return f"{in_digits(figure.ours)} {figure.unit}".rstrip() + unsure


def peer_and_ratio(figure: Measurement) -> str:
    """The peer's value and the ratio, in the row of ours."""
    if figure.peer is None or figure.ratio is None:
        return ""
    interval = "; {:.2f} to {:.2f}".format(*figure.ratio_interval) if figure.ratio_interval else ""
    return f"{in_digits(figure.peer)} ({figure.ratio:.2f}{interval})"


def foot(machine: str, figures: list[Measurement], everywhere: Collection[str]) -> str:
    """A line on the figures of one machine: which it is, how many runs, their spread, and the versions."""
    where = ", ".join(part for part in machine.split(", ") if part not in everywhere) or "the same machine"
    runs, spread = [figure.runs for figure in figures], max(figure.spread for figure in figures)
    counts = dict.fromkeys((min(runs), max(runs)))
    of_runs = f"{' to '.join(map(str, counts))} runs" + (f", spread at most {spread:.0%}" if spread else "")
    versions = dict.fromkeys(f"{name} {number}" for figure in figures for name, number in figure.versions.items())
    of_libraries = ", ".join(version for version in versions if version not in everywhere)
    parts = [where, of_runs if max(runs) > 1 else "", of_libraries]
    return f"On {'; '.join(filter(None, parts))}."


def by(figures: list[Measurement], key: Callable[[Measurement], str]) -> dict[str, list[Measurement]]:
    """The figures in groups of one key, both in their order."""
    groups: dict[str, list[Measurement]] = {}
    for figure in figures:
        groups.setdefault(key(figure), []).append(figure)
    return groups


def in_digits(value: float) -> str:
    """Four significant digits, thousands with commas."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="benchmarks to run; all of them when none is named")
    parser.add_argument("--quick", action="store_true", help="about a minute each, noisier")
    parser.add_argument("--render-only", action="store_true", help="write the page from the results on record")
    arguments = parser.parse_args()
    failed = []
    for name in [] if arguments.render_only else arguments.names or names():
        command = [sys.executable, "-m", f"benchmarks.{name}", *(["--quick"] if arguments.quick else [])]
        print("$", *command[1:], flush=True)
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(Path.cwd())}" if PAGE.is_relative_to(Path.cwd()) else f"wrote {PAGE}")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
