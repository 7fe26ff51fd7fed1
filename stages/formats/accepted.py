"""`accepted.yaml`: the stages that were declared up to date without a run (`parrotflow accept`), and why.

An entry names the record in dvc.lock that was accepted. Plain `dvc repro` leaves the file as it is, so of a stage that
has really run since it has an entry that fits no more: such an entry is not published, and goes with the next run.
"""

from collections.abc import Iterable
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from stages.formats.revision.lock import LockEntry, entry_sha256
from stages.runtime.entry import UserError

ACCEPTED = Path("accepted.yaml")

HEAD = "# Stages declared up to date without a run, and why: written by `parrotflow accept`, shown by the model card.\n"


class Accepted(BaseModel):
    """One entry."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    stage: str
    because: str
    changes: list[str]
    """What had changed, as the plan says it."""
    by: str
    """git's user.name."""
    date: str
    """UTC, YYYY-MM-DD."""
    record: str = ""
    """The sha256 of the stage's entry in dvc.lock that was accepted, 16 hex digits."""

    def fits(self, record: LockEntry | None) -> bool:
        """Whether it belongs to this entry in dvc.lock."""
        return self.record in ("", entry_sha256(record))


_ENTRIES = TypeAdapter(list[Accepted])


def read_accepted() -> list[Accepted]:
    """The entries so far. Raises UserError where the file is not as `accepted_text` gives it."""
    try:
        return _ENTRIES.validate_python(yaml.safe_load(ACCEPTED.read_text(encoding="utf-8")) or [])
    except FileNotFoundError:
        return []
    except ValidationError as error:
        first = error.errors()[0]
        place = f"{' '.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        place = " ".join(str(error).split())
    raise UserError(
        f"{ACCEPTED}: not a list of entries as `parrotflow accept` writes them, maybe after a merge by git ({place}): "
        "correct it"
    )


def accepted_text(entries: Iterable[Accepted]) -> str:
    """What the file holds for these entries."""
    return HEAD + yaml.safe_dump([entry.model_dump() for entry in entries], sort_keys=False, allow_unicode=True)
