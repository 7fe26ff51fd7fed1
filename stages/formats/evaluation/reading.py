"""Reads what a stage of evaluation has written; a user sees the first field that is missing or wrong.

A report may be stored in two files with the same keys: `reports/NAME.json` has the metrics, which `dvc metrics diff`
compares, and `reports/NAME_receipt.json` the rest: every text, and the fields that say what was measured and how.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from stages.formats.reports import write_json
from stages.runtime.entry import UserError

Report = TypeVar("Report", bound=BaseModel)


def receipt_path(report: Path) -> Path:
    """`reports/NAME_receipt.json` of `reports/NAME.json`."""
    return report.with_name(f"{report.stem}_receipt.json")


def write_with_receipt(path: Path, report: BaseModel, receipt: Collection[str]) -> None:
    """Write a report's metrics to `path`, and the fields named `receipt`, with every text, to its receipt."""
    values = report.model_dump(mode="json")
    metrics, texts = _apart({name: value for name, value in values.items() if name not in receipt})
    write_json(path, metrics)
    write_json(receipt_path(path), texts | {name: values[name] for name in receipt})


def read_with_receipt(path: Path, model: type[Report], stage: str) -> Report:
    """What `write_with_receipt` has written. Raises UserError that names the file and the first fault."""
    parts = []
    for file in (path, receipt_path(path)):
        try:
            parts.append(json.loads(file.read_bytes()))
        except (OSError, ValueError) as error:
            raise UserError(f"{file}: cannot be read ({error}); run `dvc repro {stage}`") from None
    return parse(json.dumps(_together(*parts)), model, str(path), f"run `dvc repro {stage}`")


def _apart(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The leaves that are no texts, and those that are, each under its keys."""
    others: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, str):
            texts[name] = value
        elif isinstance(value, dict):
            others[name], inner = _apart(value)
            texts |= {name: inner} if inner else {}
        else:
            others[name] = value
    return others, texts


def _together(values: Any, more: Any) -> Any:
    if not (isinstance(values, dict) and isinstance(more, dict)):
        return more
    return values | {name: _together(values.get(name), value) for name, value in more.items()}


def read_report(path: Path, model: type[Report], stage: str) -> Report:
    """A JSON file that `stage` has written. Raises UserError that names the first fault."""
    return parse(path.read_bytes(), model, str(path), f"run `dvc repro {stage}`")


def parse(content: str | bytes, model: type[Report], where: str, remedy: str) -> Report:
    """JSON as a model. Raises UserError that names the first fault, where it is, and the remedy."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise UserError(f"{where}: {first_fault(error)}; {remedy}") from None


def first_fault(error: ValidationError) -> str:
    """The first field that is missing or wrong, and how."""
    fault = error.errors()[0]
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
