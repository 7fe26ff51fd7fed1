"""The curves of a run: append-only, tab-separated files that `dvc plots` reads. Each checkpoint has a copy.

A run that continues restores the copy of its checkpoint, because the current files hold points of steps that will be
computed again, and may be truncated after a power failure. (DVCLive would write such points twice.)
"""

import csv
from collections.abc import Mapping
from pathlib import Path

from stages.runtime.atomic import atomic_write

LEARNING_RATE = "learning_rate"
"""One curve per optimizer."""

VALIDATION_LOSS, VALIDATION_BITS = "validation_loss", "validation_bits_per_byte"

BITS_BY_SOURCE = "validation_bits_by_source"
"""One curve per held-out source, if there are several."""

HELD_OUT_CURVES = (VALIDATION_LOSS, VALIDATION_BITS, BITS_BY_SOURCE)


class CurveFiles:
    """`folder/NAME.tsv` for each curve or group of curves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def restart(self) -> None:
        """Delete all curves."""
        for path in self.folder.glob("*.tsv"):
            path.unlink()

    def restore(self, checkpoint: Path, with_held_out: bool = True) -> None:
        """Replace the curves by a checkpoint's, without those of the held-out loss unless `with_held_out`."""
        self.restart()
        for path in checkpoint.glob("*.tsv"):
            if with_held_out or path.stem not in HELD_OUT_CURVES:
                atomic_write(self.folder / path.name, path.read_text(encoding="utf-8"))

    @property
    def has_held_out(self) -> bool:
        """True if the held-out loss has a point."""
        return (self.folder / f"{VALIDATION_LOSS}.tsv").is_file()

    def append(self, name: str, step: int, values: Mapping[str, float]) -> None:
        """Add a point to each curve of a file. `values` maps its columns, the same at every step, to their values."""
        with (self.folder / f"{name}.tsv").open("a", encoding="utf-8", newline="") as file:
            table = csv.writer(file, delimiter="\t", lineterminator="\n")
            if file.tell() == 0:
                table.writerow(["step", *values])
            table.writerow([step, *(f"{value:.7g}" for value in values.values())])

    def copy_to(self, folder: Path) -> None:
        """Copy all curves into an existing folder."""
        for path in self.folder.glob("*.tsv"):
            (folder / path.name).write_bytes(path.read_bytes())
