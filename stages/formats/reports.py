"""Reports: what a stage measured or did, as JSON that DVC, people and other stages read; equal values, equal bytes.

A report is one file, `reports/NAME.json`: the metrics, and what was measured and how. The curves of a training are
tables of their own, `reports/curves/NAME.tsv`, as DVCLive writes them.

The few numbers by which runs are compared are in `reports/metrics/STAGE.json`. DVC's tables (`dvc exp show`, `dvc
metrics diff`) have a column or a line for every number of every file that dvc.yaml lists under `metrics`, and a report
has dozens. So a stage writes these few once more, in a file of their own; reports are listed under `plots`, where `dvc
metrics diff --targets reports/evaluate.json` still compares all of one.
"""

import json
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError

from stages.runtime.atomic import atomic_write
from stages.runtime.errors import UserError

REPORTS = Path("reports")

CURVES_FOLDER = REPORTS / "curves"

METRICS_FOLDER = REPORTS / "metrics"

RunMetrics: TypeAlias = Mapping[str, "float | Mapping[str, float] | None"]
"""Name, as a column is called -> value; of several sets the value of each."""

REPORTED_DIGITS = 6
"""Further ones are float32's rounding, which changes with the batch size."""

STABLE_DIGITS = 12
"""Further ones are float64's rounding, which changes with the processor."""

MODEL_LIBRARIES = ("numpy", "tokenizers", "torch", "transformers")
"""The libraries that compute with a model."""

Model = TypeVar("Model", bound=BaseModel)


class Report(BaseModel, frozen=True, extra="forbid"):
    """A report of one stage. What a stage writes, a later one reads by the same class."""

    path: ClassVar[Path]
    """Its path from the project's root; copies may be elsewhere."""
    stage: ClassVar[str]
    """The stage that writes it."""

    def write(self, path: Path | None = None) -> None:
        """Write it."""
        write_json(path or self.path, self.model_dump(mode="json"))

    @classmethod
    def read(cls, path: Path | None = None) -> Self:
        """Read it. Raises UserError that names the file and the first field that is missing or wrong."""
        path, remedy = path or cls.path, f"run `dvc repro {cls.stage}`"
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error}); {remedy}") from None
        return parse(content, cls, str(path), remedy)

    @classmethod
    def find(cls, path: Path | None = None) -> Self | None:
        """Read it; None if there is none of this format."""
        try:
            return cls.read(path)
        except UserError:
            return None


def parse(content: str | bytes, model: type[Model], where: str, remedy: str) -> Model:
    """JSON as a model. Raises UserError that names the first fault, where it is, and the remedy."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise UserError(f"{where}: {first_fault(error)}; {remedy}") from None


def first_fault(error: ValidationError) -> str:
    """The first field that is missing or wrong, and how; of what is not JSON, only how."""
    fault = error.errors()[0]
    return ": ".join(filter(None, [".".join(map(str, fault["loc"])), fault["msg"].removeprefix("Value error, ")]))


def stable(value: float) -> float:
    """Without the last of a float64's digits, which differ between processors."""
    return float(f"{value:.{STABLE_DIGITS}g}")


def significant(value: float) -> float:
    """Rounded to `REPORTED_DIGITS`."""
    return float(f"{value:.{REPORTED_DIGITS}g}")


def releases(libraries: Iterable[str] = MODEL_LIBRARIES) -> dict[str, str]:
    """Library -> version, without a build tag (2.13.0+cpu): it says which hardware the release is for."""
    return {library: version(library).split("+")[0] for library in libraries}


def write_json(path: Path, values: Any) -> None:
    """Write JSON with sorted keys, two spaces, a final newline; NaN and infinities are refused (RFC 8259)."""
    atomic_write(path, json.dumps(values, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a file of JSON that a stage wrote. Raises UserError if it is no JSON."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON ({error}); delete it and run `dvc repro`, which makes it") from None


def write_lines(path: Path, lines: str) -> None:
    """Write lines of JSON; if there are none, a blank one, since DVC warns of each file that is empty."""
    atomic_write(path, lines or "\n")


def write_metrics(stage: str, values: RunMetrics) -> None:
    """Write the numbers of a stage, without those that have no value: of a column that is empty DVC shows nothing.

    A name must be that of no other stage, or DVC puts the file's path in front of it.
    """
    write_json(METRICS_FOLDER / f"{stage}.json", {name: value for name, value in values.items() if value is not None})
