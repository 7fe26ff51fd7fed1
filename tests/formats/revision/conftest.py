from pathlib import Path

import pytest

from stages.formats.model_folder import weights_sha256
from stages.formats.revision.provenance import EXECUTION, revision_path
from tests.formats.revision.records import execution, write_index


@pytest.fixture
def revision(tmp_path: Path) -> Path:
    """The folder of an intact revision."""
    folder = tmp_path / "revision"
    (folder / "record/reports").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")
    (folder / revision_path("reports/train.json")).write_text("{}")
    execution(weights_sha256(folder)).write(folder / EXECUTION)
    write_index(folder)
    return folder
