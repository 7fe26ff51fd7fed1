import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stages.formats.evaluation.document_losses import DOCUMENT_LOSSES, DocumentLosses, write_document_losses
from stages.formats.revision.provenance import Provenance
from stages.publish.record.data import md5_of_dvc
from stages.publish.registry.comparison import changes, code_of, data_of, paired_difference
from stages.publish.registry.local import Folder

BYTES = [100, 200, 300, 400]


def provenance(*stages: dict[str, object]) -> Provenance:
    return Provenance(
        revision="r",
        files={},
        weights_sha256="w",
        git=None,
        pipeline=[{"stage": f"stage {number}", "cmd": "run"} | stage for number, stage in enumerate(stages)],
        not_in_lock=[],
        publish={},
        versions={},
        training=None,
        published_from={},
    )


def evaluated(ids: str, nats: list[float]) -> Provenance:
    """The provenance of a model with these losses, a document for each letter; the losses are in data/."""
    parts = [
        DocumentLosses(
            split, model, list(ids), ["s"] * len(ids), ["p"] * len(ids), *map(np.array, (BYTES, BYTES, nats))
        )
        for split, model in (("validation", "model"), ("validation", "previous"), ("web", "model"))
    ]
    write_document_losses(DOCUMENT_LOSSES, parts)
    return provenance({"outs": [{"path": str(DOCUMENT_LOSSES), "md5": md5_of_dvc(DOCUMENT_LOSSES)}]})


def into_the_cache() -> None:
    """Move the losses to where DVC keeps an older version."""
    md5 = md5_of_dvc(DOCUMENT_LOSSES)
    entry = Path(".dvc/cache/files/md5") / md5[:2] / md5[2:]
    entry.parent.mkdir(parents=True)
    DOCUMENT_LOSSES.rename(entry)


def test_models_are_compared_on_the_documents_that_both_were_measured_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q", "--no-scm"], check=True)
    one = evaluated("abcd", [70.0, 140.0, 210.0, 280.0])
    assert paired_difference(one, one) is not None
    into_the_cache()
    other = evaluated("dcbx", [270.0, 200.0, 150.0, 1.0])

    found = paired_difference(one, other)

    assert found is not None
    assert found.documents == 3
    assert found.better_share == pytest.approx(2 / 3)
    shared_bytes, gained = 200 + 300 + 400, (150 - 140) + (200 - 210) + (270 - 280)
    assert found.difference == pytest.approx(gained / shared_bytes / np.log(2))
    low, high = found.interval_95
    assert low < found.difference < high

    DOCUMENT_LOSSES.unlink()
    assert paired_difference(one, other) is None


def test_code_is_told_from_data_and_what_a_stage_has_made_is_neither() -> None:
    first = {
        "deps": [{"path": "corpus", "md5": "1"}, {"path": "stages/a.py", "md5": "2"}],
        "outs": [{"path": "data/x", "md5": "3"}],
    }
    second = {"deps": [{"path": "data/x", "md5": "3"}, {"path": "page.html.jinja", "md5": "4"}]}
    record = provenance(first, second)

    assert code_of(record) == {
        "stage 0: cmd": "run",
        "stage 1: cmd": "run",
        "stages/a.py": "2",
        "page.html.jinja": "4",
    }


def test_the_data_of_an_older_revision_are_the_hashes_of_what_no_stage_made(tmp_path: Path) -> None:
    (tmp_path / "revisions/r").mkdir(parents=True)
    record = provenance({"deps": [{"path": "corpus", "md5": "1"}, {"path": "stages/a.py", "md5": "2"}]})

    assert data_of(Folder(tmp_path), "r", record) == {"corpus": "1"}


def test_only_what_differs_is_a_change() -> None:
    assert changes({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 4, "d": 5}) == {"b": (2, 4), "c": (3, None), "d": (None, 5)}
