"""Reads what a stage of evaluation has written; a user sees the first field that is missing or wrong."""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from stages.runtime.entry import UserError

Report = TypeVar("Report", bound=BaseModel)


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
