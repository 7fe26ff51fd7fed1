"""The files of a revision, and its name, which is their content's."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from stages.formats.hashes import file_sha256
from stages.formats.model_folder import weight_files

CARD = "README.md"
PROVENANCE = "provenance.json"

SHIPPED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
"""Of the model folder: weights, configuration, tokenizer. No pickle, which could run code where it is loaded."""

NAME_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Revision:
    """A folder that is ready to be published."""

    name: str
    """Of content alone: sha256 of the files' names and hashes, without the provenance, which is observed."""
    folder: Path
    sha256: dict[str, str]
    """File -> sha256, the provenance not counted."""

    @property
    def paths(self) -> list[str]:
        """All files, the provenance last."""
        return [*sorted(self.sha256), PROVENANCE]


def model_files(model: Path) -> list[Path]:
    """The files of a model folder that are published. Raises UserError if there are no weights among them."""
    weight_files(model)
    return sorted({path for pattern in SHIPPED for path in model.glob(pattern) if path.name != PROVENANCE})


def name_revision(folder: Path) -> Revision:
    """The revision that a folder holds; its provenance may still be missing."""
    paths = sorted(path.name for path in folder.iterdir() if path.name != PROVENANCE)
    sha256 = {path: file_sha256(folder / path) for path in paths}
    listing = "".join(f"{sha256[path]}  {path}\n" for path in paths)
    return Revision(hashlib.sha256(listing.encode("utf-8")).hexdigest()[:NAME_DIGITS], folder, sha256)
