"""The files of a revision, and its name, which is derived from their content."""

from dataclasses import dataclass
from pathlib import Path

from stages.formats.model_folder import weight_files
from stages.formats.revision.layout import PROVENANCE, revision_name
from stages.runtime.hashes import file_sha256

SHIPPED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
"""Of the model folder: weights, configuration, tokenizer. No pickle, which could run code when loaded."""


@dataclass(frozen=True, slots=True)
class Revision:
    """What is to be published."""

    name: str
    """sha256 of the files' names and hashes, without the provenance, which is observed."""
    files: dict[str, Path]
    """Path in the revision -> the file on this machine; the provenance last."""
    sha256: dict[str, str]
    """Path in the revision -> sha256, without the provenance."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.stat().st_size for file in self.files.values())


def name_revision(files: dict[str, Path], provenance: Path) -> Revision:
    """The revision that consists of these files; the provenance may still have to be written."""
    sha256 = {path: file_sha256(files[path]) for path in sorted(files)}
    return Revision(revision_name(sha256), {path: files[path] for path in sha256} | {PROVENANCE: provenance}, sha256)


def model_files(model: Path) -> dict[str, Path]:
    """The files of a model folder that are published. Raises UserError if there are no weights among them."""
    weight_files(model)
    found = (path for pattern in SHIPPED for path in model.glob(pattern))
    return {path.name: path for path in found if path.name != PROVENANCE}
