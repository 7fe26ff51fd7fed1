"""The files of a revision, and its name, which is derived from their content."""

from dataclasses import dataclass
from pathlib import Path

from stages.formats.model_folder import weight_files
from stages.formats.revision.layout import PROVENANCE, SIGNATURE, is_observed, is_shipped, revision_name
from stages.formats.revision.provenance import Provenance
from stages.runtime.entry import UserError
from stages.runtime.hashes import file_sha256


@dataclass(frozen=True, slots=True)
class Revision:
    """What is to be published."""

    name: str
    """`revision_name`: from the files' names and hashes, without those that are observed."""
    files: dict[str, Path]
    """Path in the revision -> the file on this machine; the record, the index and what attests them last."""
    sha256: dict[str, str]
    """Path in the revision -> sha256, of the files that are not observed."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.stat().st_size for file in self.files.values())


def name_revision(files: dict[str, Path]) -> Revision:
    """The revision that consists of these files; its record is gathered afterwards."""
    sha256 = {path: file_sha256(files[path]) for path in sorted(files)}
    return Revision(revision_name(sha256), {path: files[path] for path in sha256}, sha256)


def with_kept_record(revision: Revision, folder: Path) -> Revision | None:
    """The revision with the record that was published with it before; None where `folder` does not have it.

    Raises UserError where a file of that record is not as it was published, or an older version wrote it.
    """
    provenance = Provenance.find(folder / PROVENANCE)
    if provenance is None or provenance.revision != revision.name:
        return None
    again = f"delete {folder} and run `dvc repro -f -s publish`"
    if not provenance.checksum:
        raise UserError(
            f"{folder / PROVENANCE}: was written by an older version of parrotflow, without a checksum; {again}"
        )
    record = [path for path in provenance.files if is_observed(path)]
    for path in record:
        if not (folder / path).is_file() or file_sha256(folder / path) != provenance.files[path]:
            raise UserError(f"{folder / path}: differs from what was published with this revision; {again}")
    attested = [path for path in (PROVENANCE, SIGNATURE) if (folder / path).is_file()]
    return Revision(
        revision.name, revision.files | {path: folder / path for path in (*record, *attested)}, revision.sha256
    )


def model_files(model: Path) -> dict[str, Path]:
    """The files of a model folder that are published. Raises UserError if there are no weights among them."""
    weight_files(model)
    return {path.name: path for path in sorted(model.iterdir()) if path.is_file() and is_shipped(path.name)}
