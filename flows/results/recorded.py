"""Reads recorded runs: the entries of dvc.lock, and every file that the stages wrote, from DVC's cache by its hash.

DVC's run-cache also has uncached metrics, so an earlier run can be read without a checkout.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from flows.dvc_repo import project_cache
from stages.formats.evaluation.report import EVALUATE_REPORT
from stages.formats.revision.execution import TRAIN_REPORT, TRAIN_SPEED
from stages.formats.revision.provenance import Stages, ancestors, hash_of, is_within, outs_of
from stages.runtime.section import value_at

WORKSPACE = "workspace"

BITS_PER_BYTE = "bits per byte"

FIGURES = {
    BITS_PER_BYTE: (EVALUATE_REPORT, "bits_per_byte"),
    "steps": (TRAIN_REPORT, "steps"),
    "tokens read": (TRAIN_REPORT, "tokens"),
    "epochs": (TRAIN_REPORT, "epochs"),
    "parameters": (TRAIN_REPORT, "parameters"),
    "FLOP": (TRAIN_REPORT, "model_flops"),
    "tokens per second": (TRAIN_SPEED, "tokens_per_second"),
}
"""The numbers by which runs are compared: name -> report and key."""


def figures_in(reports: Mapping[str, Any]) -> dict[str, Any]:
    """The figures in reports (path -> content), None if missing, and `interval_95`, the interval of the first.

    The speed counts only if it is of the same weights.
    """
    speed, trained = (value_at(reports.get(str(path)), "weights_sha256") for path in (TRAIN_SPEED, TRAIN_REPORT))
    known = {path: values for path, values in reports.items() if path != str(TRAIN_SPEED) or speed == trained}
    figures = {name: value_at(known.get(str(path)), key) for name, (path, key) in FIGURES.items()}
    return figures | {"interval_95": value_at(known.get(str(EVALUATE_REPORT)), "interval_95.bits_per_byte")}


@dataclass(frozen=True)
class Recorded:
    """A recorded run."""

    name: str
    """Its name for the user."""
    stages: Stages
    """The entries of dvc.lock of the stages that were up to date."""
    beside: Callable[[str], bytes | None] = field(default=lambda _: None)
    """Reads a file of the project that is not in DVC's cache: from the folder, a commit or a revision."""
    logged: Mapping[str, Any] | None = None
    """Its figures, if a log has them."""

    @cached_property
    def outs(self) -> dict[str, str]:
        """Path of an output -> its hash, which ends with `.dir` for a folder."""
        return {out["path"]: hash_of(out) or "" for out in outs_of(self.stages)}

    def changed_dep(self, output: Path) -> tuple[str, str] | None:
        """A file that has changed since a stage read it to make `output`, and that stage; None if there is none."""
        for stage, entry in ancestors(self.stages, [output.as_posix()]).items():
            for dep in entry.get("deps", []):
                if self.outs.get(dep["path"], hash_of(dep)) != hash_of(dep):
                    return dep["path"], stage
        return None

    def files(self, folder: str) -> dict[str, str]:
        """Path of each file in an output folder -> its hash; empty if DVC's cache lacks the folder."""
        listed = json.loads(cached_file(self.outs.get(folder, "")) or "[]")
        return {f"{folder}/{file['relpath']}": file["md5"] for file in listed}

    def read(self, path: str) -> bytes | None:
        """The content of a file at that time; None if it was not written, or is not available."""
        out = next((out for out in self.outs if is_within(path, out)), None)
        md5 = self.outs[path] if out == path else self.files(out).get(path, "") if out else ""
        return cached_file(md5) or self.beside(path)

    def json(self, path: Path) -> Any:
        """The values of a report; None as for `read`, or if it is not JSON."""
        with suppress(ValueError):
            return json.loads(self.read(path.as_posix()) or b"null")

    @cached_property
    def figures(self) -> Mapping[str, Any]:
        """The figures of the run."""
        if self.logged is not None:
            return self.logged
        made = [path for path in (TRAIN_REPORT, EVALUATE_REPORT) if path.as_posix() in self.outs]
        return figures_in({str(path): self.json(path) for path in (*made, TRAIN_SPEED)})


@cache
def cached_file(md5: str) -> bytes | None:
    """The content with this hash in DVC's cache; None if it is missing."""
    with suppress(OSError):
        return _cache_folder().joinpath(md5[:2], md5[2:]).read_bytes() if md5 else None
    return None


@cache
def _cache_folder() -> Path:
    return Path(project_cache(), "files", "md5")


def in_folder(folder: Path) -> Callable[[str], bytes | None]:
    """A function that reads files of a folder."""
    return lambda path: (folder / path).read_bytes() if (folder / path).is_file() else None


def in_workspace(stages: Stages, names: Iterable[str]) -> Recorded:
    """These stages in their current state in this folder."""
    return Recorded(WORKSPACE, {name: stages[name] for name in names if name in stages}, in_folder(Path()))
