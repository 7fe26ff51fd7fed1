"""The curves of a run as tab-separated files that `dvc plots` reads. Append-only.

Each checkpoint has a copy. A run that continues takes the copy of its checkpoint, whose bytes were verified: the live
files may have lost their ends in a power failure, or hold points of a run of another length.

Why not DVCLive: it rewrites its whole summary at every point, so its cost grows with the square of the run's length,
and a run that continues from a checkpoint writes points twice.
"""

from collections.abc import Iterable
from pathlib import Path

from stages.runtime.atomic import atomic_write
from stages.train.params import TrainParams

LEARNING_RATE = "learning_rate"
"""The one curve with a column for each of the optimizers; others have one, named as they are."""

NAMES = ("training_loss", LEARNING_RATE, "gradient_norm", "validation_loss", "validation_bits_per_byte", "router_loss")

OPTIONAL = {"router_loss"}
"""Begun with their first point: a model without routers has none."""


class Curves:
    """`folder/NAME.tsv` for each of `NAMES`."""

    def __init__(self, folder: Path, optimizers: Iterable[str]) -> None:
        self.folder = folder
        self.optimizers = tuple(optimizers)
        folder.mkdir(parents=True, exist_ok=True)

    def restart(self) -> None:
        """Begin empty curves."""
        for name in NAMES:
            self._path(name).unlink(missing_ok=True)
            if name not in OPTIONAL:
                self._write(name, [])

    def restore(self, checkpoint: Path, step: int, params: TrainParams) -> None:
        """Take from a checkpoint's curves, up to its step, the points that an undisturbed run of `params` has.

        Others are of a run that ended at another step, or that had points at more steps. What comes after the
        checkpoint is computed again, to the same values.
        """
        self.restart()
        for name in _curves_in(checkpoint):
            every = params.evaluate_every_steps if name.startswith("validation") else params.log_every_steps
            rows = [row for row in _rows(checkpoint / f"{name}.tsv") if _step(row) <= step]
            self._write(name, [row for row in rows if _step(row) % every == 0 or _step(row) == params.max_steps])

    def append(self, name: str, step: int, *values: float) -> None:
        """Add a point to a curve: a value for each of its columns."""
        if name in OPTIONAL and not self._path(name).exists():
            self._write(name, [])
        cells = "\t".join(f"{value:.7g}" for value in values)
        with self._path(name).open("a", encoding="utf-8") as file:
            file.write(f"{step}\t{cells}\n")

    def copy_to(self, folder: Path) -> None:
        """Copy all curves into an existing folder."""
        for name in _curves_in(self.folder):
            (folder / f"{name}.tsv").write_bytes(self._path(name).read_bytes())

    def _write(self, name: str, rows: list[str]) -> None:
        columns = self.optimizers if name == LEARNING_RATE else (name,)
        header = "\t".join(("step", *columns))
        atomic_write(self._path(name), "".join(f"{row}\n" for row in [header, *rows]))

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.tsv"


def _curves_in(folder: Path) -> list[str]:
    """The names of the curves that a folder has."""
    return [name for name in NAMES if name not in OPTIONAL or (folder / f"{name}.tsv").exists()]


def _rows(file: Path) -> list[str]:
    """The points of a curve; the last line counts only if it was written to its end."""
    complete_lines = file.read_text(encoding="utf-8").rpartition("\n")[0]
    return complete_lines.splitlines()[1:]


def _step(row: str) -> int:
    return int(row.split("\t", maxsplit=1)[0])
