"""Run every benchmark and render the page docs/reference/measured.md.

Run: `python -m benchmarks [--quick] [--render-only] [NAME ...]`.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.measurements import recorded
from benchmarks.tables import MOST_SPREAD, table

PAGE = Path(__file__).parents[1] / "docs/reference/measured.md"
NOT_BENCHMARKS = {"__main__", "default_run", "measurements", "tables"}


def names() -> list[str]:
    """The benchmarks that can be run, by their modules."""
    return sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - NOT_BENCHMARKS)


def render() -> str:
    """Render the page of the figures on record, which names the benchmarks that have none."""
    results = {name: recorded(name) for name in names()}
    lines = [
        "# Measured",
        "",
        f"`python -m benchmarks.NAME` measures {', '.join(names())} again, `make bench` all of them. Both sides run in "
        "turn; a figure is the median. Behind a peer, 2.00 means that ours is twice as good, with a 95 % interval of "
        "neighbouring runs.",
        "",
        f"A figure is unsure if (highest - lowest) / median of our runs is above {MOST_SPREAD:.0%}. "
        "[The records](../../benchmarks/results/) have each figure's runs.",
    ]
    for name, figures in results.items():
        if figures:
            lines += ["", f"## {name}", "", *table(figures)]
    missing = [f"`{name}`" for name, figures in results.items() if not figures]
    if missing:
        lines += ["", f"Not measured with this code: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


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
