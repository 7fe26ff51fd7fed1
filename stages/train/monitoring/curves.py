"""The curves of a run as tab-separated files, one per quantity, that `dvc plots` reads. Append-only.

They lie beside the checkpoints, so that a run that continues cuts them at its checkpoint's step and goes on.
"""

import math
from collections.abc import Callable
from pathlib import Path

from stages.runtime.atomic import atomic_write

CURVES = ("training_loss", "learning_rate", "gradient_norm", "validation_loss", "validation_bits_per_byte")


class Curves:
    """`folder/NAME.tsv` for each of `CURVES`, with the columns `step` and NAME."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def restore(self, checkpoint: Path | None) -> None:
        """Take the curves that a checkpoint holds where there are none here (another machine, a mirror)."""
        for name in CURVES:
            if checkpoint is not None and not self._path(name).exists() and (checkpoint / f"{name}.tsv").exists():
                atomic_write(self._path(name), (checkpoint / f"{name}.tsv").read_bytes())
        self.cut_after(-1 if checkpoint is None else math.inf)

    def cut_after(self, step: float) -> None:
        """Forget what lies behind `step`: it will be computed again, to the same values."""
        for name in CURVES:
            self._keep(name, lambda number: number <= step)

    def forget_end(self, step: int, log_every_steps: int, evaluate_every_steps: int) -> None:
        """Forget the points at `step` that stand there only because a shorter run had its end there."""
        for name in CURVES:
            every = evaluate_every_steps if name.startswith("validation") else log_every_steps
            if step % every:
                self._keep(name, lambda number: number != step)

    def _keep(self, name: str, wanted: Callable[[int], bool]) -> None:
        rows = [f"{row}\n" for row in self._rows(name) if wanted(int(row.split("\t")[0]))]
        atomic_write(self._path(name), "".join([f"step\t{name}\n", *rows]))

    def append(self, step: int, **values: float) -> None:
        """Add a point to each named curve."""
        for name, value in values.items():
            with self._path(name).open("a", encoding="utf-8") as file:
                file.write(f"{step}\t{value:.7g}\n")

    def copy_to(self, folder: Path) -> None:
        """Copy all curves into an existing folder."""
        for name in CURVES:
            (folder / f"{name}.tsv").write_bytes(self._path(name).read_bytes())

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.tsv"

    def _rows(self, name: str) -> list[str]:
        if not self._path(name).exists():
            return []
        whole_lines = self._path(name).read_text(encoding="utf-8").rpartition("\n")[0]
        return whole_lines.splitlines()[1:]
