"""The curves of a run, of which each checkpoint has a copy.

They are tab-separated files that `dvc plots` reads, append-only. A run that continues takes the copy of its
checkpoint: the live files hold points of steps that are computed again, and may have lost their
ends in a power failure. (DVCLive rewrites its whole summary at every point, and would write such points twice.)
"""

from collections.abc import Iterable
from pathlib import Path

from stages.runtime.atomic import atomic_write

LEARNING_RATE = "learning_rate"
"""The one curve with a column for each of the optimizers; others have one, named as they are."""

VALIDATION_LOSS, VALIDATION_BITS = "validation_loss", "validation_bits_per_byte"


class CurveFiles:
    """`folder/NAME.tsv` for each curve that has a point."""

    def __init__(self, folder: Path, optimizers: Iterable[str]) -> None:
        self.folder = folder
        self.optimizers = tuple(optimizers)
        folder.mkdir(parents=True, exist_ok=True)

    def restart(self) -> None:
        """Begin empty curves."""
        for path in self.folder.glob("*.tsv"):
            path.unlink()

    def restore(self, checkpoint: Path, with_held_out: bool = True) -> None:
        """Take a checkpoint's curves; without those of the held-out loss if it was measured on other tokens."""
        self.restart()
        for path in checkpoint.glob("*.tsv"):
            if with_held_out or path.stem not in (VALIDATION_LOSS, VALIDATION_BITS):
                atomic_write(self.folder / path.name, path.read_text(encoding="utf-8"))

    @property
    def has_held_out(self) -> bool:
        """True if the held-out loss has a point."""
        return (self.folder / f"{VALIDATION_LOSS}.tsv").is_file()

    def append(self, name: str, step: int, *values: float) -> None:
        """Add a point to a curve: a value for each of its columns."""
        columns = self.optimizers if name == LEARNING_RATE else (name,)
        with (self.folder / f"{name}.tsv").open("a", encoding="utf-8") as file:
            if file.tell() == 0:
                file.write("\t".join(("step", *columns)) + "\n")
            file.write("\t".join((str(step), *(f"{value:.7g}" for value in values))) + "\n")

    def copy_to(self, folder: Path) -> None:
        """Copy all curves into an existing folder."""
        for path in self.folder.glob("*.tsv"):
            (folder / path.name).write_bytes(path.read_bytes())
