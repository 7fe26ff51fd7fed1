"""Publishing to a Hub on the loopback interface, in this process and with the real client."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import _http

from stages.formats.evaluation.report import Evaluation
from stages.formats.revision.provenance import EVALUATION, PROVENANCE, Receipt
from stages.formats.revision.statement import Provenance
from stages.publish.hub import publish_to_hub
from stages.publish.params import PublishParams
from stages.publish.revision import Gate, Revision, name_revision, published_files
from stages.runtime.section import read_section
from tests.fake_hub import WRITER, Hub
from tests.formats.revision.records import GITSTATE
from tests.trained_project import write_sections

NAME = "me/model"


def use(hub: Hub, monkeypatch: pytest.MonkeyPatch, token: str = WRITER) -> None:
    """Let the client of this process speak to `hub`: by LFS, and without waiting between its attempts."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub.folder / "cache"))
    monkeypatch.setenv("HF_TOKEN", token)
    for name in ("base_wait_time", "max_wait_time"):
        monkeypatch.setitem(_http.http_backoff.__kwdefaults__, name, 0.01)


def publish(bits_per_byte: float = 2.0, record: str = "", **changes: Any) -> Receipt:
    """Publish the model and the card of the current folder, with a small record."""
    write_sections(Path(), publish__repository=NAME, **{f"publish__{name}": value for name, value in changes.items()})
    params = read_section("publish", PublishParams)
    evaluation = Evaluation.read().model_copy(update={"bits_per_byte": bits_per_byte})
    return publish_to_hub(with_record(evaluation, record), params, Gate(params.gate, evaluation))


def with_record(evaluation: Evaluation, note: str) -> Revision:
    named = name_revision(published_files())
    folder = Path(tempfile.mkdtemp(dir=".."))
    (folder / EVALUATION).parent.mkdir(parents=True)
    evaluation.write(folder / EVALUATION)
    (folder / "record/note").write_text(note)
    added = [EVALUATION, "record/note", PROVENANCE]
    files = named.sha256 | dict.fromkeys(added[:2], "0" * 64)
    facts = {"git": GITSTATE, "parameters": {}, "sources": []}
    Provenance(revision=named.name, files=files, **facts).write(folder / PROVENANCE)
    return Revision(named.name, named.files | {path: folder / path for path in added}, named.sha256)
