"""Where a revision comes from: a folder, the Hub."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.reproduce.revision import OF_THE_HUB, check_signature, local_folder
from stages.formats.revision.provenance import PROVENANCE
from stages.formats.revision.verify import TRUSTED_KEY
from stages.runtime.errors import UserError
from tests.fake_hub import WRITER, Hub
from tests.small_project import ROOT, folder_bytes

FROM_THE_HUB = """\
import huggingface_hub
from pathlib import Path
from huggingface_hub import HfApi
from flows.reproduce.revision import fetched

api = HfApi()
api.create_repo("me/model")
api.upload_folder(repo_id="me/model", folder_path="main")
api.create_tag("me/model", tag="abc")
Path("work/revision.partial").mkdir(parents=True)
fetched("me/model@abc", Path("work"))
huggingface_hub.snapshot_download = None
fetched("me/model@abc", Path("work"))
"""


@pytest.fixture
def revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "main"
    (folder / "record").mkdir(parents=True)
    (folder / PROVENANCE).write_text("{}")
    (folder / "record" / "params.yaml").write_text("a: 1\n")
    return folder


def test_a_folder_of_published_models_means_its_main(revision: Path) -> None:
    assert local_folder(str(revision.parent)) == revision


def test_an_archive_is_left_to_the_user_and_anything_else_is_named(revision: Path) -> None:
    Path("revision.tar.gz").touch()

    with pytest.raises(UserError, match=r"revision\.tar\.gz: is a file; unpack it"):
        local_folder("revision.tar.gz")
    with pytest.raises(UserError, match="neither a folder nor a Hub name"):
        local_folder("nothing here")


def test_a_tag_on_the_hub_is_downloaded_into_the_work_folder_once(revision: Path, tmp_path: Path) -> None:
    with Hub(tmp_path / "hub") as hub:
        environment = {
            "HF_ENDPOINT": hub.endpoint,
            "HF_TOKEN": WRITER,
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_DISABLE_XET": "1",
            "PYTHONPATH": str(ROOT),
            "PATH": os.environ["PATH"],
        }
        subprocess.run([sys.executable, "-c", FROM_THE_HUB], cwd=tmp_path, env=environment, check=True)

    fetched = folder_bytes(tmp_path / "work" / "revision")
    assert {path: fetched[path] for path in fetched if not path.startswith(OF_THE_HUB)} == folder_bytes(revision)


@pytest.mark.parametrize("by_option", [True, False])
def test_where_a_key_is_named_an_unsigned_revision_is_refused(
    revision: Path, monkeypatch: pytest.MonkeyPatch, by_option: bool
) -> None:
    monkeypatch.delenv(TRUSTED_KEY, raising=False)
    assert check_signature("main", revision, None) == "not signed"
    Path("key.pub").write_text("ssh-ed25519 AAAA")
    if not by_option:
        monkeypatch.setenv(TRUSTED_KEY, "key.pub")

    with pytest.raises(UserError, match="not signed"):
        check_signature("main", revision, Path("key.pub") if by_option else None)
