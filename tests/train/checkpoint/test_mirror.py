"""A run goes on from its mirror on another machine; here an S3 on the loopback device."""

import shutil
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto import settings
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem

from stages.formats.model_folder import weights_sha256
from stages.runtime.entry import EXIT_UNAVAILABLE, EXIT_USER_ERROR, UserError
from stages.train.checkpoint.mirror import Mirror
from tests.small_project import folder_bytes
from tests.train.small_run import copy_of, fork, run, run_workers, write_params, write_project

CONSTANT = {"schedule__name": "constant"}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps that nothing disturbed."""
    folder = write_project(tmp_path_factory.mktemp("reference"), **CONSTANT)
    run_workers(folder, 1)
    return folder


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of an empty bucket on an S3 to which this process and its children speak."""
    name = uuid.uuid4().hex
    store = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    store.start()
    try:
        host, port = store.get_host_and_port()
        speak_to(f"http://{host}:{port}", monkeypatch)
        boto3.client("s3").create_bucket(Bucket=name)
        yield name
    finally:
        store.stop()


def speak_to(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")


def unused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def names(bucket: str) -> set[str]:
    """What is in the bucket: the checkpoint's name and the file's."""
    listed = boto3.client("s3").list_objects_v2(Bucket=bucket).get("Contents", [])
    return {"/".join(item["Key"].split("/")[-2:]) for item in listed}


def test_another_machine_goes_on_from_the_mirror_and_ends_with_the_same_weights(
    reference: Path, tmp_path: Path, bucket: str, capfd: pytest.CaptureFixture[str]
) -> None:
    project = copy_of(reference, tmp_path / "project")
    write_params(project, **CONSTANT, max_steps=7)
    run_workers(project, 1, PARROTFLOW_MIRROR=f"s3://{bucket}/parrot")
    assert {name.split("/")[0] for name in names(bucket) if "step-" in name} == {"step-00000007"}
    assert {"step-00000007/manifest.json", "step-00000007/training_loss.tsv"} < names(bucket)

    shutil.rmtree(project / ".parrotflow")
    write_params(project, **CONSTANT)
    run_workers(project, 1, PARROTFLOW_MIRROR=f"s3://{bucket}/parrot")

    assert "continuing at step 7 of 12" in capfd.readouterr().out
    assert weights_sha256(project / "model") == weights_sha256(reference / "model")
    for curve in sorted((reference / "reports/curves").iterdir()):
        assert (project / "reports/curves" / curve.name).read_bytes() == curve.read_bytes()


def test_a_run_that_may_not_continue_those_in_the_mirror_says_what_differs(
    reference: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As where `precision: auto` means another one on the other machine."""
    project, mirror = copy_of(reference, tmp_path / "project"), (tmp_path / "mirror").as_uri()
    for seed, precision in ((1, "bf16"), (0, "bf16"), (0, "fp32")):
        shutil.rmtree(project / ".parrotflow", ignore_errors=True)
        write_params(project, max_steps=3, seed=seed, precision=precision)
        run_workers(project, 1, PARROTFLOW_MIRROR=mirror)
    said = [line for line in capfd.readouterr().out.splitlines() if line.startswith("starting afresh, ")]
    afresh = "starting afresh, not from another run's checkpoints: "
    assert said[-2:] == [
        f"{afresh}train.precision: bf16 -> fp32",
        f"{afresh}auto is what this hardware multiplies fast; the other value in params.yaml continues that run",
    ]


def test_exported_steps_come_from_the_mirror_with_the_checkpoint_also_where_this_machine_computed_others(
    reference: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    project, mirror = copy_of(reference, tmp_path / "project"), (tmp_path / "mirror").as_uri()
    write_params(project, **CONSTANT, export_steps=[2], max_steps=7)
    run_workers(project, 1, PARROTFLOW_MIRROR=mirror, PARROTFLOW_MICRO_BATCH="3")
    mirrored = weights_sha256(project / "model/step-00000002")

    shutil.rmtree(project / ".parrotflow")
    write_params(project, **CONSTANT, export_steps=[2], max_steps=3)
    run_workers(project, 1)
    assert weights_sha256(project / "model/step-00000002") != mirrored
    for shipped_from in ("this machine", "another"):
        write_params(project, **CONSTANT, export_steps=[2])
        run_workers(project, 1, PARROTFLOW_MIRROR=mirror)
        assert weights_sha256(project / "model/step-00000002") == mirrored, shipped_from
        shutil.rmtree(project / ".parrotflow")
    assert "continuing at step 7 of 12" in capfd.readouterr().out


def test_an_exported_step_that_is_damaged_in_the_mirror_is_not_shipped(reference: Path, tmp_path: Path) -> None:
    project, mirror = copy_of(reference, tmp_path / "project"), tmp_path / "mirror"
    write_params(project, **CONSTANT, export_steps=[2], max_steps=3)
    run_workers(project, 1, PARROTFLOW_MIRROR=mirror.as_uri())
    for file in mirror.glob("*/exports/*"):
        file.write_bytes(b"damaged")
    shutil.rmtree(project / ".parrotflow")
    said = run(project, expected_code=EXIT_UNAVAILABLE, begin=fork, PARROTFLOW_MIRROR=mirror.as_uri())
    assert "is damaged; without it the run would start afresh" in said


def test_a_checkpoint_that_never_got_its_manifest_up_there_is_skipped(
    reference: Path, tmp_path: Path, bucket: str, capfd: pytest.CaptureFixture[str]
) -> None:
    project = copy_of(reference, tmp_path / "project")
    write_params(project, **CONSTANT, max_steps=6)
    run_workers(project, 1, PARROTFLOW_MIRROR=f"s3://{bucket}/parrot")
    client = boto3.client("s3")
    for item in client.list_objects_v2(Bucket=bucket)["Contents"]:
        if "step-" in item["Key"] and not item["Key"].endswith("manifest.json"):
            later = item["Key"].replace("step-00000006", "step-00000009")
            client.copy_object(Bucket=bucket, Key=later, CopySource=f"{bucket}/{item['Key']}")

    shutil.rmtree(project / ".parrotflow")
    write_params(project, **CONSTANT)
    run_workers(project, 1, PARROTFLOW_MIRROR=f"s3://{bucket}/parrot")
    assert "continuing at step 6 of 12" in capfd.readouterr().out
    assert weights_sha256(project / "model") == weights_sha256(reference / "model")


@pytest.fixture(scope="module")
def until_7(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders `project`, a run until step 7 that keeps its checkpoints 6 and 7, and `mirror`, which has 7."""
    folder = tmp_path_factory.mktemp("until_7")
    project = copy_of(reference, folder / "project")
    write_params(project, **CONSTANT, max_steps=7)
    run_workers(project, 1, PARROTFLOW_MIRROR=(folder / "mirror").as_uri())
    write_params(project, **CONSTANT)
    return folder


@pytest.fixture
def stopped(until_7: Path, tmp_path: Path) -> Path:
    """A copy of that project, beside one of its mirror; its run goes to step 12."""
    shutil.copytree(until_7 / "mirror", tmp_path / "mirror")
    return Path(shutil.copytree(until_7 / "project", tmp_path / "project"))


def steps(runs: Path) -> list[str]:
    """The checkpoints of the only run there."""
    return sorted(path.name for path in runs.glob("*/step-*"))


def test_checkpoints_that_are_damaged_here_are_taken_from_the_mirror(
    reference: Path, stopped: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for file in stopped.glob(".parrotflow/checkpoints/*/step-*/__0_0.distcp"):
        file.write_bytes(b"damaged")
    run_workers(stopped, 1, PARROTFLOW_MIRROR=(stopped.parent / "mirror").as_uri())
    said = capfd.readouterr().out
    assert "step-00000007 is skipped: __0_0.distcp is missing or damaged" in said
    assert "continuing at step 7 of 12" in said
    assert weights_sha256(stopped / "model") == weights_sha256(reference / "model")
    assert steps(stopped.parent / "mirror") == ["step-00000012"]


def test_all_processes_of_a_machine_that_stopped_earlier_continue_from_the_newer_one_in_the_mirror(
    stopped: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(next(stopped.glob(".parrotflow/checkpoints/*/step-00000007")))
    run_workers(stopped, 2, PARROTFLOW_MIRROR=(stopped.parent / "mirror").as_uri())
    assert capfd.readouterr().out.count("continuing at step 7 of 12") == 1


def test_a_mirror_that_does_not_answer_stops_no_run_that_has_a_checkpoint_here(
    stopped: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    speak_to(f"http://127.0.0.1:{unused_port()}", monkeypatch)
    write_params(stopped, **CONSTANT, max_steps=8)
    run_workers(stopped, 1, PARROTFLOW_MIRROR="s3://runs/parrot")
    said = capfd.readouterr().out
    assert "warning: PARROTFLOW_MIRROR=s3://runs/parrot: cannot be read: " in said
    assert "; the run continues from what is here" in said
    assert "continuing at step 7 of 8" in said


def test_a_later_checkpoint_in_the_mirror_outlives_the_upload_of_an_earlier_one(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a start while the mirror did not answer; with step 9 the later one is an earlier one."""
    monkeypatch.setenv("PARROTFLOW_MIRROR", (stopped.parent / "mirror").as_uri())
    earlier, later = sorted(stopped.glob(".parrotflow/checkpoints/*/step-*"))
    mirror = Mirror(later.parent.name)
    mirror.push(earlier, {})
    assert mirror.names() == ["step-00000006", "step-00000007"]
    mirror.push(later.rename(later.with_name("step-00000009")), {})
    assert mirror.names() == ["step-00000009"]


def test_a_checkpoint_in_the_mirror_that_the_run_may_not_continue_leaves_nothing_here(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARROTFLOW_MIRROR", (stopped.parent / "mirror").as_uri())
    (run_here,) = stopped.glob(".parrotflow/checkpoints/*")
    (tmp_path / "elsewhere").mkdir()
    mirror, path = Mirror(run_here.name), tmp_path / "elsewhere/step-00000007"
    assert not mirror.pull(path, lambda progress: progress.step > 7)
    assert list(path.parent.iterdir()) == []
    assert mirror.pull(path, lambda progress: progress.step == 7)
    assert folder_bytes(path) == folder_bytes(run_here / path.name)


def test_a_mirror_that_does_not_answer_at_the_start_ends_the_run_before_it_starts_afresh(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak_to(f"http://127.0.0.1:{unused_port()}", monkeypatch)
    project = copy_of(reference, tmp_path / "project")
    said = run(project, expected_code=EXIT_UNAVAILABLE, begin=fork, PARROTFLOW_MIRROR="s3://runs/parrot")
    assert said.splitlines()[-1].startswith("error: PARROTFLOW_MIRROR=s3://runs/parrot: cannot be read: ")
    assert "Traceback" not in said
    assert not (project / "model").exists()


def test_refused_credentials_are_the_users_to_correct_and_no_outage(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From now on the store asks for credentials."""
    monkeypatch.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)
    monkeypatch.setenv("PARROTFLOW_MIRROR", f"s3://{bucket}/parrot")
    with pytest.raises(UserError, match="the credentials are refused") as wrong_key:
        Mirror("0123456789abcdef").names()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    S3FileSystem.clear_instance_cache()
    with pytest.raises(UserError, match="the credentials are refused") as no_key:
        Mirror("0123456789abcdef").names()
    assert wrong_key.value.exit_code == no_key.value.exit_code == EXIT_USER_ERROR


def test_a_mirror_that_takes_nothing_does_not_stop_the_run(
    reference: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mirror = tmp_path / "no_folder"
    mirror.write_text("a file stands where the mirror should be", encoding="utf-8")
    project = copy_of(reference, tmp_path / "project")
    run_workers(project, 1, PARROTFLOW_MIRROR=mirror.as_uri())
    warnings = [line for line in capfd.readouterr().out.splitlines() if line.startswith("warning: PARROTFLOW_MIRROR=")]
    assert [line.split(": ")[2].split()[0] for line in warnings] == [f"step-{step:08d}" for step in (3, 6, 9, 12)]
    assert warnings[0].endswith("; the run continues")
    assert weights_sha256(project / "model") == weights_sha256(reference / "model")


def test_an_unknown_kind_of_mirror_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROTFLOW_MIRROR", "nosuch://runs")
    with pytest.raises(UserError, match="PARROTFLOW_MIRROR=nosuch://runs: cannot be used: Protocol not known"):
        Mirror("0123456789abcdef")


def test_a_mirror_whose_url_holds_a_password_is_refused_without_repeating_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROTFLOW_MIRROR", "s3://key:s3cr3t@bucket/runs")

    with pytest.raises(UserError, match="PARROTFLOW_MIRROR: the URL holds a password") as refused:
        Mirror("run")
    assert "s3cr3t" not in str(refused.value)


def test_exports_that_no_checkpoint_in_the_mirror_names_any_more_are_removed(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where their steps were computed again with other last bits, or are not exported any more."""
    monkeypatch.setenv("PARROTFLOW_MIRROR", (stopped.parent / "mirror").as_uri())
    earlier, later = sorted(stopped.glob(".parrotflow/checkpoints/*/step-*"))
    (tmp_path / "weights").write_text("of a step")
    mirror = Mirror(later.parent.name)

    def exports() -> list[str]:
        return sorted(path.name for path in (stopped.parent / "mirror").glob("*/exports/*"))

    mirror.push(earlier, {"first": tmp_path / "weights"})
    mirror.push(earlier, {"again": tmp_path / "weights"})
    assert exports() == ["again", "first"], "the later checkpoint there may name them"
    mirror.push(later, {"again": tmp_path / "weights"})
    assert exports() == ["again"]
