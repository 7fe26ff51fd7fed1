"""Run every benchmark and render the page docs/reference/measured.md.

Run: `python -m benchmarks [--quick] [--render-only] [NAME ...]`.
"""

import argparse
import ast
import subprocess
import sys
from pathlib import Path

from benchmarks.measurements import MAX_SPREAD, ROOT, markdown, recorded

PAGE = ROOT / "docs/reference/measured.md"
NOT_BENCHMARKS = {"__main__", "default_run", "measurements"}


def names() -> list[str]:
    """The benchmarks that can be run, by their modules."""
    return sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - NOT_BENCHMARKS)


def what_is_measured(name: str) -> str:
    """The beginning of a benchmark's docstring, to the first colon."""
    tree = ast.parse((Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8"))
    return f"{(ast.get_docstring(tree) or '').partition(':')[0]}."


def render() -> str:
    """Render the page of the figures on record, which names the benchmarks that have none."""
    results = {name: recorded(name) for name in names()}
    lines = [
        "# Measured",
        "",
        "`python -m benchmarks.NAME` measures one again, `make bench` all. Both sides take turns; a figure is "
        "the median. In the columns of other tools the number in brackets is ours divided by theirs (above 1, ours is "
        f"better), with a 95 % interval. Unsure: our runs differ by more than {MAX_SPREAD:.0%}. "
        "[The records](../../benchmarks/results/) have every run.",
    ]
    for name, figures in results.items():
        if figures:
            lines += ["", f"## {name}", "", what_is_measured(name), "", *markdown(figures)]
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
