"""The few numbers by which runs are compared, `reports/metrics/STAGE.json`.

DVC's tables (`dvc exp show`, `dvc metrics diff`) have a column or a line for every number of every file that dvc.yaml
lists under `metrics`, and a report has dozens. So a stage writes these few once more, in a file of their own; reports
are listed under `plots`, where `dvc metrics diff --targets reports/evaluate.json` still compares all of one.
"""

from collections.abc import Mapping
from typing import TypeAlias

from stages.formats.reports import REPORTS, write_json

METRICS_FOLDER = REPORTS / "metrics"

RunMetrics: TypeAlias = Mapping[str, "float | Mapping[str, float] | None"]
"""Name, as a column is called -> value; of several sets the value of each."""


def write_metrics(stage: str, values: RunMetrics) -> None:
    """Write the numbers of a stage, without those that have no value: of a column that is empty DVC shows nothing.

    A name must be that of no other stage, or DVC puts the file's path in front of it.
    """
    write_json(METRICS_FOLDER / f"{stage}.json", {name: value for name, value in values.items() if value is not None})
