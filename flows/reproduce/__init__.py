"""`parrotflow reproduce REV`: rebuild a published revision from its record, and say whether it is the same.

Here are its arguments and options, which it shows as the docstrings say.
"""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from stages.runtime.errors import UserError


@dataclass(frozen=True)
class ReproduceOptions:
    """The options of the command."""

    revision: str
    """A revision's folder, e.g. published/NAME/main, or owner/name@REVISION on the Hub."""
    _: KW_ONLY
    folder: Path | None = None
    """The folder to work in; the default is .parrotflow/reproduce/REVISION."""
    from_scratch: bool = False
    """Compute the data too, instead of taking it from this project's cache or the default DVC remote."""
    yes: bool = False
    """Run the revision's code without asking; needed if there is no terminal."""
    key: Path | None = None
    """A file with the publisher's public key: the revision must be signed by it."""
    segment: str | None = None
    """Compute only the steps FROM-TO again, e.g. 0-100. FROM is 0 or a checkpoint kept in this project, TO a recorded
    one."""

    @property
    def steps(self) -> tuple[int, int] | None:
        """The two steps of `segment`. Raises UserError if it is not FROM-TO."""
        if self.segment is None:
            return None
        first, _, last = self.segment.partition("-")
        if not (first.isdecimal() and last.isdecimal()):
            raise UserError(f"--segment {self.segment}: expected FROM-TO in steps, e.g. 0-100")
        return int(first), int(last)
