"""Run every benchmark and render the page docs/reference/measured.md.

Run: `python -m benchmarks [--quick] [--render-only] [NAME ...]`.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.measurements import Measurement, recorded

PAGE = Path(__file__).parents[1] / "docs/reference/measured.md"
NOT_BENCHMARKS = {"__init__", "__main__", "measurements"}

MOST_SPREAD = 0.20
"""Of a figure that is not called unsure."""

SAME = "″"
"""In place of a figure's name where the row before has the same."""


def names() -> list[str]:
    """The benchmarks, by their modules."""
    return sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - NOT_BENCHMARKS)


def render() -> str:
    """The page of every figure on record. A benchmark without a result is said to be unmeasured."""
    lines = [
        "# Measured",
        "",
        "`python -m benchmarks.NAME` measures a section again, `make bench` all: both sides in turn in one run, "
        "medians. A ratio above 1 means that parrotflow is better; (low to high) is the 95 % interval of the median "
        "ratio of runs next to each other. The spread is (highest - lowest) / median of our runs; above "
        f"{MOST_SPREAD:.0%} a figure is unsure. Where no kind of CPU is given, it was not recorded.",
    ]
    for name in names():
        lines += ["", f"## {name}", ""]
        figures = recorded(name)
        lines += table(figures) if figures else ["Not yet measured."]
    return "\n".join(lines) + "\n"


def table(figures: list[Measurement]) -> list[str]:
    """One result as a Markdown table, the machine and the versions under it."""
    lines = ["| figure | ours | peer | ratio | runs | spread |", "|---|--:|--:|--:|--:|--:|"]
    last = ""
    for figure in figures:
        what, last = SAME if figure.figure == last else figure.figure, figure.figure
        peer = "" if figure.peer is None else f"{figure.peer:.4g} {figure.unit} ({figure.peer_name})"
        ours = f"{figure.ours:.4g} {figure.unit}"
        unsure = " (unsure)" if figure.spread > MOST_SPREAD else ""
        lines.append(
            f"| {what} | {ours} | {peer} | {figure.ratio_text} | {figure.runs} | {figure.spread:.0%}{unsure} |"
        )
    for place in sorted({(figure.machine, tuple(figure.versions.items())) for figure in figures}):
        lines += ["", f"On {place[0]}; " + ", ".join(f"{name} {number}" for name, number in place[1]) + "."]
    return lines


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
