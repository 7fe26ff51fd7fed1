"""deploy/slurm/train.sbatch under a real Slurm: two nodes, both on this machine, as the user who runs the test.

`apt-get install slurmctld slurmd slurm-client` is all that it needs. It takes minutes.
"""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from getpass import getuser
from pathlib import Path

import psutil
import pytest

from stages.formats.model_folder import weights_sha256
from tests.flows.small_pipeline import environment, make_pipeline, repro
from tests.small_project import ROOT, SECTIONS, write_params
from tests.waiting import wait_until

PROGRAMS = ("slurmctld", "slurmd", "sbatch")
MISSING = [name for name in PROGRAMS if shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin") is None]

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(bool(MISSING), reason=f"Slurm is not installed here: {', '.join(MISSING)} not found"),
    pytest.mark.xdist_group("slurm"),
    pytest.mark.timeout(3600),
]

STEPS = 120

SLURM_CONF = """\
ClusterName=two
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=2,bf_interval=2
KillWait=20
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort={ports[0]}
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 State=UNKNOWN
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 State=UNKNOWN
PartitionName=normal Nodes=one,two Default=YES PriorityTier=1 GraceTime=60 PreemptMode=REQUEUE State=UP
PartitionName=urgent Nodes=one,two PriorityTier=2 PreemptMode=OFF State=UP
"""


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nothing uses."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cluster of two nodes that this process's commands speak to; it ends with the tests."""
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool-one", "spool-two"):
        (folder / name).mkdir()
    names = {"folder": folder, "host": socket.gethostname().split(".")[0], "user": getuser()}
    (folder / "slurm.conf").write_text(SLURM_CONF.format(ports=free_ports(3), **names))
    patch = pytest.MonkeyPatch()
    conf = str(folder / "slurm.conf")
    patch.setenv("SLURM_CONF", conf)
    patch.setenv("PATH", os.environ["PATH"] + ":/usr/sbin")
    commands = [["slurmctld", "-D"], ["slurmd", "-D", "-N", "one"], ["slurmd", "-D", "-N", "two"]]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with (folder / f"{len(daemons)}.out").open("w") as out:
                daemons.append(subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True))
            time.sleep(1)
        wait_until(lambda: said("sinfo", "--noheader", "--format=%T") == "idle")
        yield
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait()
        for process in psutil.process_iter(["name", "environ"]):
            # A job's own daemon may outlive the others.
            if process.info["name"] == "slurmstepd" and (process.info["environ"] or {}).get("SLURM_CONF") == conf:
                process.kill()
        patch.undo()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pipeline with a training of some seconds, its data ready."""
    folder = make_pipeline(tmp_path_factory.mktemp("slurm-project") / "project")
    shutil.copytree(ROOT / "deploy", folder / "deploy")
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/activate").write_text(f"export PATH={Path(sys.executable).parent}:$PATH\n")
    lengths = {
        "train__max_steps": STEPS,
        "monitoring__checkpoint_every_steps": 10,
        "monitoring__evaluate_every_steps": STEPS,
    }
    write_params(folder, *SECTIONS, **lengths)
    repro(folder, "tokenize")
    return folder


@pytest.fixture(scope="module")
def undisturbed(slurm: None, prepared: Path) -> Path:
    """The project after a job that nothing disturbed."""
    folder = copy_of(prepared)
    job = submit(folder)
    wait_until(lambda: state(job) == "COMPLETED")
    return folder


def copy_of(project: Path) -> Path:
    """The same project in a folder of its own."""
    folder = project.with_name(f"project-{secrets.token_hex(4)}")
    return Path(shutil.copytree(project, folder, symlinks=True))


def submit(folder: Path, *options: str) -> str:
    """Submit the template from a project; the job's number."""
    command = ["sbatch", "--parsable", "--nodes=2", *options, "deploy/slurm/train.sbatch"]
    return subprocess.check_output(command, cwd=folder, env=environment(folder, POLL_SECONDS="1"), text=True).strip()


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def state(job: str) -> str:
    return said("scontrol", "--oneliner", "show", "job", job).partition("JobState=")[2].partition(" ")[0]


def trains(folder: Path) -> bool:
    return bool(list((folder / ".parrotflow/checkpoints").glob("*/step-00000020")))


def test_two_nodes_train_one_model_and_the_pipeline_is_complete(undisturbed: Path) -> None:
    log = next(undisturbed.glob("slurm-*.log")).read_text()

    assert log.count("launching 2 processes") == 2
    assert (undisturbed / "published/tiny/receipt.json").exists()
    assert repro(undisturbed) == []


def test_a_pre_empted_job_saves_is_requeued_and_ends_with_the_weights_of_an_undisturbed_one(
    prepared: Path, undisturbed: Path
) -> None:
    folder = copy_of(prepared)
    job = submit(folder)
    log = folder / f"slurm-{job}.log"
    wait_until(lambda: trains(folder))

    urgent = said("sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--output=/dev/null", "--wrap", "sleep 1")
    wait_until(lambda: state(job) == "PENDING")
    wait_until(lambda: state(urgent) == "COMPLETED")
    # Slurm lets a job that was requeued wait for two minutes.
    said("scontrol", "update", f"JobId={job}", "StartTime=now")
    wait_until(lambda: state(job) == "COMPLETED")

    assert "stopped on request, state saved" in log.read_text()
    assert "continuing at step" in log.read_text()
    assert weights_sha256(folder / "model") == weights_sha256(undisturbed / "model")


def test_a_job_near_its_time_limit_saves_and_is_requeued(prepared: Path, undisturbed: Path) -> None:
    """Slurm signals the script alone then."""
    folder = copy_of(prepared)
    job = submit(folder)
    log = folder / f"slurm-{job}.log"
    wait_until(lambda: trains(folder))

    said("scancel", "--batch", "--signal=TERM", job)
    wait_until(lambda: state(job) == "PENDING")
    said("scontrol", "update", f"JobId={job}", "StartTime=now")
    wait_until(lambda: state(job) == "COMPLETED")

    assert "stopped on request, state saved" in log.read_text()
    assert weights_sha256(folder / "model") == weights_sha256(undisturbed / "model")


def test_a_job_that_a_person_cancels_stays_cancelled_and_the_next_one_continues(
    prepared: Path, undisturbed: Path
) -> None:
    folder = copy_of(prepared)
    job = submit(folder)
    wait_until(lambda: trains(folder))

    said("scancel", job)
    wait_until(lambda: state(job) == "CANCELLED" and said("sinfo", "--noheader", "--format=%T") == "idle")
    time.sleep(3)
    assert state(job) == "CANCELLED"

    again = submit(folder)
    log = folder / f"slurm-{again}.log"
    wait_until(lambda: state(again) == "COMPLETED")
    assert "continuing at step" in log.read_text()
    assert weights_sha256(folder / "model") == weights_sha256(undisturbed / "model")
