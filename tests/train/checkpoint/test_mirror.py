"""A run continues from its mirror on another machine, here an S3 on the loopback device; no mirror stops a run."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import boto3
import pytest
from fsspec.implementations.local import LocalFileSystem

from stages.runtime.errors import EXIT_CONTINUE, UserError
from stages.train import worker
from stages.train.checkpoint import mirror as module
from stages.train.checkpoint.mirror import Mirror
from tests.s3 import empty_bucket
from tests.small_project import folder_bytes
from tests.train.small_run import copy_of, run_workers, stopped_at, write_project


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps that nothing disturbed; it keeps the checkpoints 2, 9 and 12."""
    folder = write_project(tmp_path_factory.mktemp("reference"), export_steps=[2])
    run_workers(folder, 1)
    return folder


@pytest.fixture
def here(reference: Path) -> dict[str, Path]:
    """Its checkpoints by name."""
    return {path.name: path for path in reference.glob(".parrotflow/checkpoints/*/step-*")}


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    """An empty one, in a folder."""
    monkeypatch.setenv("PARROTFLOW_MIRROR", (tmp_path / "mirror").as_uri())
    return Mirror("run")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of an empty bucket on an S3 to which this process and its children speak."""
    with empty_bucket(monkeypatch) as name:
        yield name


def in_bucket(bucket: str) -> set[str]:
    """The checkpoints in the bucket."""
    listed = boto3.client("s3").list_objects_v2(Bucket=bucket)["Contents"]
    return {item["Key"].split("/")[-2] for item in listed}


def test_another_machine_continues_from_the_mirror_and_leaves_the_same_bytes(
    reference: Path, tmp_path: Path, bucket: str, capfd: pytest.CaptureFixture[str]
) -> None:
    project, url = copy_of(reference, tmp_path / "project"), f"s3://{bucket}/parrot"
    run_workers(project, 1, stopped_at(7), EXIT_CONTINUE, PARROTFLOW_MIRROR=url)
    assert in_bucket(bucket) == {"step-00000002", "step-00000007"}

    shutil.rmtree(project / ".parrotflow")
    run_workers(project, 2, PARROTFLOW_MIRROR=url, PARROTFLOW_MICRO_BATCH="4")

    assert capfd.readouterr().out.count("continuing at step 7 of 12") == 1
    assert folder_bytes(project / "model").keys() == folder_bytes(reference / "model").keys()
    exported = "model/step-00000002"
    assert folder_bytes(project / exported) == folder_bytes(reference / exported)
    assert in_bucket(bucket) == {"step-00000002", "step-00000012"}


def test_what_is_incomplete_or_damaged_there_is_not_taken(
    mirror: Mirror, here: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror._upload(list(map(here.__getitem__, sorted(here))))
    there = tmp_path / "mirror/run"
    (there / "step-00000012/manifest.json").unlink()
    (there / "step-00000009/__0_0.distcp").write_bytes(b"damaged")
    (tmp_path / "run").mkdir()

    mirror.pull(tmp_path / "run")

    assert [path.name for path in (tmp_path / "run").iterdir()] == ["step-00000002"]
    assert folder_bytes(tmp_path / "run/step-00000002") == folder_bytes(here["step-00000002"])
    assert "step-00000009 is skipped: __0_0.distcp is missing or damaged" in capsys.readouterr().out


def test_the_newest_checkpoint_replaces_older_ones_and_no_later_one(
    mirror: Mirror, here: dict[str, Path], tmp_path: Path
) -> None:
    def names() -> list[str]:
        return sorted(path.name for path in (tmp_path / "mirror/run").iterdir())

    exported, earlier, later = map(here.__getitem__, sorted(here))
    mirror._upload([exported, later])
    mirror._upload([exported, earlier])
    assert names() == [exported.name, earlier.name, later.name], "as after a start while it could not be read"
    mirror._upload([later])
    assert names() == [later.name]


def test_a_mirror_that_takes_and_gives_nothing_is_a_warning(
    mirror: Mirror, here: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mirror").write_text("a file stands where the mirror should be", encoding="utf-8")
    mirror.push([here["step-00000012"]])
    mirror.finish()
    said = capsys.readouterr().out
    assert said.startswith(f"warning: PARROTFLOW_MIRROR={mirror.url}: step-00000012 was not uploaded (")
    assert said.endswith("); the run continues\n")


def hanging_main() -> None:
    """The worker whose mirror takes the first byte and never answers."""
    module.LAST_UPLOAD_SECONDS = 0.1
    LocalFileSystem.put_file = lambda *arguments, **options: Event().wait()
    worker.main()


def test_an_upload_that_hangs_stops_neither_a_step_nor_the_end_of_a_run(
    reference: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    project = copy_of(reference, tmp_path / "project")
    run_workers(project, 1, hanging_main, PARROTFLOW_MIRROR=(tmp_path / "mirror").as_uri())
    assert "the last checkpoint was not uploaded within 0 s; the run ends" in capfd.readouterr().out
    assert folder_bytes(project / "model") == folder_bytes(reference / "model")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nosuch://runs", "PARROTFLOW_MIRROR=nosuch://runs: cannot be used: Protocol not known"),
        ("s3://key:s3cr3t@bucket/runs", "PARROTFLOW_MIRROR: the URL holds a password"),
    ],
)
def test_an_unknown_kind_of_mirror_and_a_password_are_refused(
    monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    monkeypatch.setenv("PARROTFLOW_MIRROR", url)
    with pytest.raises(UserError, match=said) as refused:
        Mirror("run")
    assert "s3cr3t" not in str(refused.value)
