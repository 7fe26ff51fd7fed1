"""200 stages by a matrix: graph, `why`, and a run with nothing to do.

python -m benchmarks.many_stages [--quick]
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

from benchmarks.flow import LIBRARIES, timed
from benchmarks.measurements import compare, interleave, record
from benchmarks.runs.pipelines import PARROTFLOW, REPRO, WHY, make_pipeline

STAGES = 200


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    runs = 1 if quick else 3
    dvc_yaml = (
        f"stages:\n  each:\n    matrix: {{n: {list(range(STAGES))}}}\n"
        '    cmd: echo ${item.n} > f${item.n}.txt\n    outs: ["f${item.n}.txt"]\n'
    )
    with tempfile.TemporaryDirectory() as folder:
        project = make_pipeline(Path(folder) / "many", dvc_yaml)
        subprocess.run(REPRO, cwd=project, check=True)
        sides = {
            "why": lambda: timed(project, WHY),
            "run": lambda: timed(project, PARROTFLOW),
            "dvc": lambda: timed(project, REPRO),
        }
        measured = interleave(sides, runs)
    named = (("why", f"`parrotflow why` of {STAGES} stages"), ("run", f"a run of {STAGES} stages, nothing to do"))
    figures = [
        compare(
            words,
            measured[side],
            measured["dvc"],
            peer_name="dvc repro, nothing to do",
            unit="s",
            higher_is_better=False,
            libraries=LIBRARIES,
        )
        for side, words in named
    ]
    record("many_stages", figures, quick=quick)


if __name__ == "__main__":
    main()
