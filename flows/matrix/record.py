"""`python -m flows.matrix.record CELL REPORT... CURVE...`: the results in this folder as the run of a cell, run.json.

It is the last stage of each cell in the dvc.yaml that flows/matrix/pipeline.py writes. CELL is a cell's name, REPORT a
path, CURVE is FILE:COLUMN.
"""

import sys
from pathlib import Path

from flows.experiments.runs import RUN_FILE, Run, reports_and_curves
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import run_stage
from stages.runtime.section import read_params_file


def main() -> None:
    """Read params.yaml, the reports and the curves; write the record."""
    cell, *sources = sys.argv[1:]
    reports = [source for source in sources if ":" not in source]
    curves = [source for source in sources if ":" in source]
    files = {source.partition(":")[0] for source in sources}
    texts = {file: Path(file).read_text(encoding="utf-8") for file in files}
    values, points = reports_and_curves(texts, reports, curves)
    run = Run(
        cell=cell.rpartition("-")[2],
        state="finished",
        experiment=cell,
        commit="",
        baseline="",
        params=read_params_file(),
        reports=values,
        curves=points,
        ended="",
    )
    atomic_write(Path(RUN_FILE), run.model_dump_json(indent=1) + "\n")


if __name__ == "__main__":
    run_stage(main)
