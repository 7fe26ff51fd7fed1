import errno
import json
import os
import re
import signal
import stat
import subprocess
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from stages.formats.model_folder import weights_sha256
from stages.runtime.errors import UserError
from tests.formats.revision.records import execution
from tests.publish.publishing import main, train_anew
from tests.publish.repository import git
from tests.small_project import folder_bytes
from tests.trained_project import write_sections

KEPT = Path("published/tiny/revisions")
MAIN = Path("published/tiny/main")
PUBLISHED = Path("published/tiny")
RECEIPT = Path("published/tiny/receipt.json")


def publish_until_killed(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """Publish in a child process, which is killed where it would call `at`."""
    with monkeypatch.context() as killing:
        killing.setattr(at, lambda *_: os.kill(os.getpid(), 9))
        child = get_context("fork").Process(target=main)
        child.start()
        child.join()
    assert child.exitcode == -signal.SIGKILL


def receipt() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(RECEIPT.read_text())
    return result


def test_a_revision_is_laid_out_as_the_hub_would_have_it_and_loads_by_path(project: Path) -> None:
    main()

    revision = receipt()["revision"]
    assert MAIN.readlink() == Path("revisions") / revision
    assert sorted(path.name for path in MAIN.iterdir()) == [
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "provenance.json",
        "record",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert f"tokenizer({json.dumps(receipt()['prompt'])}, return_tensors" in (MAIN / "README.md").read_text()
    assert AutoModelForCausalLM.from_pretrained(MAIN).num_parameters() > 0
    assert AutoTokenizer.from_pretrained(MAIN).eos_token == "<|endoftext|>"


def test_nothing_is_published_twice_whatever_the_commit_is(project: Path) -> None:
    main()
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in KEPT.rglob("*")}
    first = RECEIPT.read_bytes()
    RECEIPT.unlink()
    git("commit", "-q", "--allow-empty", "-m", "second")

    main()

    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in KEPT.rglob("*")} == before
    assert RECEIPT.read_bytes() == first


def test_main_leads_back_to_a_model_that_was_restored_without_its_execution(project: Path) -> None:
    execution(weights_sha256()).write()
    main()
    first, content = receipt()["revision"], folder_bytes(MAIN)
    train_anew(1)
    execution(weights_sha256()).write()
    main()
    assert MAIN.readlink().name == receipt()["revision"] != first

    train_anew(0)  # the report of the execution is still that of the other training
    main()

    assert MAIN.readlink().name == first
    assert folder_bytes(MAIN) == content
    assert len(list(KEPT.iterdir())) == 2


def test_a_revision_that_was_changed_is_not_published_again_as_if_intact(project: Path) -> None:
    main()
    weights = KEPT / receipt()["revision"] / "model.safetensors"
    weights.unlink()
    weights.write_bytes(b"other")

    with pytest.raises(UserError, match=f"{re.escape(str(weights.parent))}: model.safetensors: differs .*; delete"):
        main()


def test_a_kill_during_the_copy_leaves_nothing_that_looks_published(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main()
    before = folder_bytes(Path("published"))
    train_anew(1)

    publish_until_killed(monkeypatch, at="pathlib.Path.chmod")

    after = {path: content for path, content in folder_bytes(Path("published")).items() if ".partial/" not in path}
    assert after == before
    main()
    assert not list(KEPT.glob(".*"))


def test_each_revision_has_files_of_its_own_which_none_can_write(project: Path) -> None:
    main()
    first = MAIN.resolve()
    write_sections(Path(), card__description="Another description.")
    main()

    assert not (first / "model.safetensors").samefile(MAIN / "model.safetensors")
    assert (first / "model.safetensors").read_bytes() == (MAIN / "model.safetensors").read_bytes()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in KEPT.rglob("*") if path.is_file()}
    assert modes == {0o444}
    subprocess.run(["rm", "-r", "published"], check=True, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", "", "a..b"])
def test_a_name_cannot_lead_elsewhere(project: Path, name: str) -> None:
    write_sections(project, publish__name=name)

    with pytest.raises(UserError, match=r"params.yaml: publish"):
        main()


def test_no_pickle_is_shipped(project: Path) -> None:
    (project / "model/pytorch_model.bin").write_bytes(b"pickle")
    (project / "model/optimizer.pt").write_bytes(b"pickle")

    main()

    assert not [path for path in MAIN.iterdir() if path.suffix in (".bin", ".pt")]


def test_a_full_disk_names_the_file_that_could_not_be_written(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def full(path: Path, mode: str = "r", **options: Any) -> Any:
        if mode == "wb" and "revisions" in path.parts:
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, mode, **options)

    monkeypatch.setattr("pathlib.Path.open", full)

    with pytest.raises(OSError, match="No space left on device") as raised:
        main()

    assert "published/tiny/revisions/" in raised.value.filename
