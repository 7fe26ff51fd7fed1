"""The curves of a training: `reports/curves/NAME.tsv`, a row for each recorded step. train writes them, publish draws.

The first column is `step`, then a column for each series, as DVCLive writes them.
"""

from pathlib import Path
from typing import TypeAlias

CURVES = Path("reports/curves")

Points: TypeAlias = list[tuple[int, float]]
"""(step, value)."""


def read_curve(name: str, folder: Path = CURVES) -> dict[str, Points]:
    """Series -> its points; empty where there is no such curve."""
    path = folder / f"{name}.tsv"
    if not path.is_file():
        return {}
    heading, *rows = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
    return {
        series: [(int(row[0]), float(row[column])) for row in rows if row[column]]
        for column, series in enumerate(heading)
        if column
    }
