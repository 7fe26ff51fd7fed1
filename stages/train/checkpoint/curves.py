"""The curves of a run, of which each checkpoint has a copy.

They are tab-separated files that `dvc plots` reads, append-only. A run that continues takes the copy of its
checkpoint: the live files hold points of steps that are computed again, and may have lost their
ends in a power failure. (DVCLive rewrites its whole summary at every point, and would write such points twice.)
"""

import csv
from collections.abc import Mapping
from pathlib import Path

from stages.runtime.atomic import atomic_write

LEARNING_RATE = "learning_rate"
"""A curve for each of the optimizers."""

VALIDATION_LOSS, VALIDATION_BITS = "validation_loss", "validation_bits_per_byte"

BITS_BY_SOURCE = "validation_bits_by_source"
"""A curve for each of the held-out sources, if there are several."""

HELD_OUT_CURVES = (VALIDATION_LOSS, VALIDATION_BITS, BITS_BY_SOURCE)


class CurveFiles:
    """`folder/NAME.tsv` for each curve, or group of curves, that has a point."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def restart(self) -> None:
        """Begin empty curves."""
        for path in self.folder.glob("*.tsv"):
            path.unlink()

    def restore(self, checkpoint: Path, with_held_out: bool = True) -> None:
        """Take a checkpoint's curves; without those of the held-out loss if it was measured on other tokens."""
        self.restart()
        for path in checkpoint.glob("*.tsv"):
            if with_held_out or path.stem not in HELD_OUT_CURVES:
                atomic_write(self.folder / path.name, path.read_text(encoding="utf-8"))

    @property
    def has_held_out(self) -> bool:
        """True if the held-out loss has a point."""
        return (self.folder / f"{VALIDATION_LOSS}.tsv").is_file()

    def append(self, name: str, step: int, values: Mapping[str, float]) -> None:
        """Add a point to each curve of a file: its column, which is the same at every step, and its value."""
        with (self.folder / f"{name}.tsv").open("a", encoding="utf-8", newline="") as file:
            table = csv.writer(file, delimiter="\t", lineterminator="\n")
            if file.tell() == 0:
                table.writerow(["step", *values])
            table.writerow([step, *(f"{value:.7g}" for value in values.values())])

    def copy_to(self, folder: Path) -> None:
        """Copy all curves into an existing folder."""
        for path in self.folder.glob("*.tsv"):
            (folder / path.name).write_bytes(path.read_bytes())
