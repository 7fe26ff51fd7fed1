"""Run every benchmark and render the page docs/reference/measured.md.

Run: `python -m benchmarks [--quick] [--render-only] [NAME ...]`.
"""

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from benchmarks.measurements import Measurement, recorded
from benchmarks.tables import MOST_SPREAD, table

PAGE = Path(__file__).parents[1] / "docs/reference/measured.md"
NOT_BENCHMARKS = {"__main__", "default_run", "measurements", "tables"}


def names() -> list[str]:
    """The benchmarks that can be run, by their modules."""
    return sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - NOT_BENCHMARKS)


def render() -> str:
    """Render the page of the figures on record, which names the benchmarks that have none."""
    results = {name: recorded(name) for name in names()}
    everywhere = common([figures for figures in results.values() if figures])
    lines = [
        "# Measured",
        "",
        f"`python -m benchmarks.NAME` measures {', '.join(names())} again, `make bench` all of them. Both sides run in "
        "turn; a figure is the median. In a peer's column (2.00; low to high) means that ours is twice as good, with a "
        "95 % interval of the median ratio of neighbouring runs. Rows or columns complete a heading with `…`.",
        "",
        f"A figure is unsure if (highest - lowest) / median of our runs is above {MOST_SPREAD:.0%}. "
        "[The records](../../benchmarks/results/) have each figure's runs. Those in `decided/`, of older code or of "
        "questions that are decided, are not shown here.",
        "",
        f"Unless a section says otherwise: {', '.join(everywhere)}. Without a number of runs, it is one.",
    ]
    for name, figures in results.items():
        if figures:
            lines += ["", f"## {name}", "", *table(figures, everywhere)]
    missing = [f"`{name}`" for name, figures in results.items() if not figures]
    if missing:
        lines += ["", f"Not measured with this code: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def common(results: Collection[list[Measurement]]) -> list[str]:
    """What all figures share of the machine, else its most frequent number of cores; and the versions most shared.

    Those of libraries that several results depend on.
    """
    figures = [figure for result in results for figure in result]
    parts = [figure.machine.split(", ") for figure in figures]
    cores = Counter(part for machine in parts for part in machine if part.endswith(" cores"))
    found = sorted(set.intersection(*map(set, parts)) | {part for part, _ in cores.most_common(1)})
    for name in sorted({name for figure in figures for name in figure.versions}):
        by_result = [{figure.versions[name] for figure in result if name in figure.versions} for result in results]
        (number, shared), *_ = Counter(number for numbers in by_result for number in numbers).most_common(1)
        found += [f"{name} {number}"] if shared > 1 else []
    return found


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
