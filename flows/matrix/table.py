"""`python -m flows.matrix.table EXPERIMENT SIZE`: the tables, figures and claims of the runs of its matrix stages.

It is the last stage of the dvc.yaml that flows/matrix/pipeline.py writes. That names those runs as its inputs, so no
other run of the experiment counts here, also none of a cell that was in the grid before. EXPERIMENT is the path of its
file.
"""

import sys
from typing import TYPE_CHECKING, cast

from flows.environment import prepare_environment
from stages.runtime.entry import run_stage

if TYPE_CHECKING:
    from flows.experiments.experiment import SettingName


def main() -> None:
    """Read each cell's run; write what is made of them."""
    prepare_environment()  # before DVC and matplotlib are imported
    from flows.experiments.cells import cells_of
    from flows.experiments.experiment import read_experiment, results_folder
    from flows.experiments.results import compute, summary, write_results
    from flows.experiments.runs import matrix_runs

    name, size = sys.argv[1], cast("SettingName", sys.argv[2])
    todays = {cell.name for cell in cells_of(name, read_experiment(name), size)}
    runs = [run for run in matrix_runs(results_folder(name, size)) if run.experiment in todays]
    results = compute(name, size, runs)
    write_results(name, size, results)
    print(*summary(results), sep="\n")


if __name__ == "__main__":
    run_stage(main)
