"""A sweep on a work pool, with a real Prefect server, two real workers, a git origin and a DVC remote."""

import asyncio
import json
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.dvc_repo import experiment_ref
from flows.experiments.cells import Cell
from flows.experiments.record import recorded_runs as runs_of
from flows.run.outcome import StageOutcome
from flows.run.server import Server
from flows.sweep import clone, pool
from flows.sweep.jobs import Batch, Job
from flows.sweep.keys import TargetFacts
from flows.sweep.pool import (
    OnPool,
    deployment_of_cells,
    end_of_cell,
    outcome_of_flow_run,
    require_reachable,
    run_cells_on_pool,
    sweep_cell,
    unavailable,
)
from stages.runtime.errors import EXIT_CONTINUE, UserError
from tests.flows.operated import Operated, operated, worker
from tests.flows.sweep.test_sweep import RECORD, TABLE
from tests.flows.sweep.toy_sweep import DVC_YAML, TWO_CELLS, make_sweep, sweep
from tests.flows.test_pipeline import environment
from tests.flows.toy import commit, dvc, git
from tests.waiting import wait_until

pytestmark = pytest.mark.acceptance


ROOT = Path(__file__).parents[3]
COUNTED = DVC_YAML.replace("> tokens.txt", "| tee tokens.txt | wc -l > count.txt").replace(
    "outs: [tokens.txt]", "outs: [tokens.txt]\n    metrics: [count.txt: {cache: false}]"
)
"""With a shared stage whose metrics are in git alone, as the reports of the real pipeline are."""

COMMAND = [sys.executable, "-m", "flows.cli", "sweep", "toy", "--pool"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    with operated(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture
def known(server: Operated) -> Iterator[Operated]:
    """The server, to which this process speaks too: Prefect reads the environment once, when it is imported."""
    with temporary_settings({PREFECT_API_URL: server.address}), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_API_URL", server.address)
        yield server


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A toy project with git's remote and DVC's remote in folders next to it."""
    folder = make_sweep(tmp_path / "toy", COUNTED, **TWO_CELLS)
    shutil.copyfile(ROOT / "prefect.yaml", folder / "prefect.yaml")
    shutil.copytree(ROOT / "flows", folder / "flows", ignore=shutil.ignore_patterns("__pycache__"))
    dvc(folder, "remote", "add", "-q", "-d", "store", str(tmp_path / "store"))
    git(folder, "branch", "-M", "main")
    commit(folder)
    git(tmp_path, "clone", "-q", "--bare", "toy", "origin.git")
    git(folder, "remote", "add", "origin", str(tmp_path / "origin.git"))
    return folder


def variables(server: Operated, home: Path) -> dict[str, str]:
    return environment(home) | {"PREFECT_API_URL": server.address}


def flow_runs(server: Operated, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.post("flow_runs/filter", work_pools={"name": {"any_": [name]}})
    return found


def states(server: Operated, name: str) -> Counter[str]:
    return Counter(run["state"]["type"] for run in flow_runs(server, name))


def test_two_workers_make_the_tables_of_a_local_sweep_also_after_a_kill_and_compute_what_is_shared_once(
    server: Operated, project: Path, tmp_path: Path
) -> None:
    undisturbed = make_sweep(tmp_path / "undisturbed", **TWO_CELLS)
    assert sweep(undisturbed).returncode == 0
    server.post("work_pools/", name="parrotflow", type="process")
    server.prefect(project, "deploy", "--name", "sweep-cell")
    one, two = (tmp_path / name for name in ("one", "two"))
    for folder in (one, two):
        git(tmp_path, "clone", "-q", "origin.git", folder.name)

    with worker(server, one, "parrotflow", "--limit", "1"), worker(server, two, "parrotflow", "--limit", "1"):
        killed = subprocess.Popen(COMMAND, cwd=project, env=variables(server, tmp_path))
        wait_until(lambda: len(flow_runs(server, "parrotflow")) == 3)
        killed.kill()
        killed.wait()
        done = sweep(project, "--pool", PREFECT_API_URL=server.address)

    assert done.returncode == 0, done.stdout
    assert states(server, "parrotflow") == {"COMPLETED": 3}, "a flow run was started twice"
    assert {run["name"] for run in server.flow_runs("sweep")} == {"toy"}
    said = "".join((folder / "prefect.log").read_text() for folder in (one, two))
    assert Counter(re.findall(r"│ (\w+) started\n", said)) == {"collect": 1, "tokenize": 1, "train": 2}
    for suffix in (".md", ".tex"):  # the page names commits, which hold the time
        name = TABLE.with_suffix(suffix)
        assert (project / name).read_bytes() == (undisturbed / name).read_bytes()
    here, there = ({run.cell: run for run in runs_of(folder / RECORD)} for folder in (project, undisturbed))
    assert {cell: (run.params, run.reports, run.curves) for cell, run in here.items()} == {
        cell: (run.params, run.reports, run.curves) for cell, run in there.items()
    }
    assert set(dvc(project, "exp", "list", "--name-only").split()) == {run.experiment for run in here.values()}
    changed = [line for line in git(project, "status", "--porcelain").splitlines() if "__pycache__" not in line]
    assert changed == ["?? experiments/toy/"]


def test_a_cell_that_fails_is_recorded_one_whose_worker_dies_runs_again_and_ctrl_c_cancels(
    server: Operated, project: Path, tmp_path: Path
) -> None:
    """The part of the workers is played here, by the states that they would set."""
    deploy(server, "idle")
    first = start(server, project)
    (shared,) = wait_until(lambda: flow_runs(server, "idle"))
    ends(server, shared, "COMPLETED")
    wait_until(lambda: len(flow_runs(server, "idle")) == 3)
    a, b = (run for run in flow_runs(server, "idle") if run["id"] != shared["id"])
    ends(server, a, "FAILED", "train: error: no luck")
    ends(server, b, "CRASHED", "its machine is gone")
    said, _ = first.communicate()

    assert first.returncode == 1
    assert "failed: train: error: no luck" in said
    assert "cancelled: its machine is gone" in said
    assert "run the same command to retry them" in said
    assert [run.message for run in runs_of(project / RECORD)] == ["train: error: no luck"]

    second = start(server, project)
    (again,) = wait_until(lambda: [run for run in flow_runs(server, "idle") if not run["end_time"]])
    assert again["name"] == b["name"]
    second.send_signal(signal.SIGINT)
    said, _ = second.communicate()

    assert second.returncode == EXIT_CONTINUE
    assert "stopped; 1 cells are left; run the same command to continue" in said
    assert "Traceback" not in said
    assert states(server, "idle") == {"COMPLETED": 1, "FAILED": 1, "CRASHED": 1, "CANCELLED": 1}


def start(server: Operated, project: Path) -> "subprocess.Popen[str]":
    # Programs that a shell starts in the background ignore Ctrl-C.
    command = ["env", "--default-signal=INT", *COMMAND]
    return subprocess.Popen(
        command,
        cwd=project,
        env=variables(server, project.parent),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ends(server: Operated, run: dict[str, Any], kind: str, message: str = "") -> None:
    state = {"type": kind, "name": kind.capitalize(), "message": message}
    server.post(f"flow_runs/{run['id']}/set_state", state=state, force=True)


def deploy(server: Operated, name: str) -> None:
    """Deploy the flow to a new work pool, whose workers are played by the test."""
    flow = server.post("flows/", name="sweep-cell")
    server.post("work_pools/", name=name, type="process")
    server.post("deployments/", name="sweep-cell", flow_id=flow["id"], work_pool_name=name)


CELL = Cell("0123abcd", "toy-0123abcd", {}, 0, {"model.width": {"b": 1, "a": 2}, "model.name": "b"})
JOB = Job("key", (CELL.id,), ("train",))
DONE = StageOutcome("a", "ran")


def on_pool(deployment: Any = None) -> OnPool:
    """One cell as the only one of a sweep of the working directory's project."""
    head = git(Path(), "rev-parse", "HEAD")
    params = {"model": {"width": 1, "name": "a"}}
    facts = TargetFacts({"model"}, set(), 0, 0.0)
    batch = Batch("toy", [CELL], ["train"], {"scores.json"}, (), facts, params, RECORD)
    return OnPool(batch, head, {CELL.id: {}}, {}, deployment)


def test_a_crashed_attempt_is_followed_by_another_although_an_older_one_was_deleted(
    known: Operated, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    with get_client(sync_client=True) as client:
        monkeypatch.setattr(pool, "DEPLOYMENT", "sweep-cell/none")
        with pytest.raises(UserError, match=r"no deployment sweep-cell/none; "):
            deployment_of_cells(client)
        monkeypatch.undo()
        monkeypatch.chdir(project)
        deploy(known, "pruned")
        starter = on_pool(deployment_of_cells(client))

    async def attempts() -> None:
        async with get_client() as client:
            first = await starter.flow_run_of(client, JOB)
            ends(known, {"id": str(first)}, "CRASHED")
            second = await starter.flow_run_of(client, JOB)
            assert await starter.flow_run_of(client, JOB) == second, "it was submitted twice"
            ends(known, {"id": str(second)}, "CRASHED")
            httpx.delete(f"{known.address}/flow_runs/{first}", timeout=180).raise_for_status()

            third = await starter.flow_run_of(client, JOB)

            assert third
            assert outcome_of_flow_run("one", await client.read_flow_run(third)) is None

    asyncio.run(attempts())
    assert states(known, "pruned") == {"CRASHED": 1, "SCHEDULED": 1}


def test_a_cell_is_not_started_again_while_a_worker_ends_its_cancelled_flow_run(
    known: Operated, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    deploy(known, "cancelled")
    with get_client(sync_client=True) as client:
        starter, job = on_pool(deployment_of_cells(client)), replace(JOB, key="cancelled")

    async def attempts() -> None:
        async with get_client() as client:
            first = await starter.flow_run_of(client, job)
            ends(known, {"id": str(first)}, "RUNNING")  # Prefect cancels one that does not run at once
            ends(known, {"id": str(first)}, "CANCELLING")
            assert await starter.flow_run_of(client, job) is None
            ends(known, {"id": str(first)}, "CANCELLED")
            assert await starter.flow_run_of(client, job) not in (None, first)

    asyncio.run(attempts())
    assert states(known, "cancelled") == {"CANCELLED": 1, "SCHEDULED": 1}


def test_a_server_that_is_busy_when_the_sweep_begins_is_asked_again(
    known: Operated, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers 503 while its SQLite is locked."""
    monkeypatch.chdir(project)
    deploy(known, "busy")
    refused: list[str] = []
    send = httpx.AsyncClient.send

    async def busy_at_first(self: httpx.AsyncClient, request: httpx.Request, *args: Any, **kwargs: Any) -> Any:
        if request.url.path.endswith("/flow_runs/") and not refused:
            refused.append(request.method)
            return httpx.Response(503, headers={"Retry-After": "0"}, request=request)
        return await send(self, request, *args, **kwargs)

    async def work(self: OnPool, job: Job, log: Any) -> StageOutcome:
        return StageOutcome(job.name(self.cells), "failed", message="no luck")

    monkeypatch.setattr(httpx.AsyncClient, "send", busy_at_first)
    monkeypatch.setattr(OnPool, "work", work)
    one = on_pool()

    runs = run_cells_on_pool(one.batch, one.head, one.keys, Server(known.address))

    assert refused == ["POST"]
    assert [run.message for run in runs.values()] == ["no luck"]


def test_a_server_that_is_away_is_said_once_and_waited_for_and_one_that_refuses_ends_the_sweep(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    asking = on_pool()
    request = httpx.Request("GET", "http://127.0.0.1/api")

    for status in (0, 503, 0):
        with asking.asking():
            raise_of(request, status)
    assert capsys.readouterr().out.count("Prefect's server does not answer") == 1

    with asking.asking():
        pass
    with asking.asking():
        raise_of(request, 0)
    assert capsys.readouterr().out.count("Prefect's server does not answer") == 1
    for status in (401, 404):
        with pytest.raises(UserError, match=str(status)), asking.asking():
            raise_of(request, status)


def raise_of(request: httpx.Request, status: int) -> None:
    """What httpx raises for this status; 0: nothing listens."""
    if not status:
        raise httpx.ConnectError("refused", request=request)
    httpx.Response(status, request=request).raise_for_status()


def test_a_cell_reaches_its_worker_with_its_overrides_in_their_order(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    sent: dict[str, Any] = {}

    async def arun_deployment(deployment: Any, *, parameters: dict[str, Any], **_: object) -> SimpleNamespace:
        sent.update(parameters)
        return SimpleNamespace(id=uuid4())

    monkeypatch.setattr(pool, "arun_deployment", arun_deployment)

    asyncio.run(on_pool()._submit(JOB, None))

    # A server may sort the keys of objects.
    received = sweep_cell.validate_parameters(json.loads(json.dumps(sent, sort_keys=True)))
    cell = received["cell"]
    assert cell == CELL
    assert [list(cell.overrides), list(cell.overrides["model.width"])] == [["model.width", "model.name"], ["b", "a"]]


def test_a_cell_whose_reports_cannot_be_read_is_not_recorded_and_collected_later(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    collecting = on_pool()
    ref = experiment_ref(collecting.head, CELL.name)
    git(project, "push", "-q", "origin", f"HEAD:{ref}")

    absent = f"the results of {CELL.name} cannot be read: neither git nor the DVC remote has scores.json"
    assert collecting.recorded(JOB, DONE) == unavailable(DONE.name, absent)
    assert not RECORD.exists()

    Path("scores.json").write_text('{"loss": 1.5}')
    git(project, "checkout", "-q", "-b", "results")
    commit(project)
    git(project, "push", "-qf", "origin", f"HEAD:{ref}")
    git(project, "checkout", "-q", "main")
    assert collecting.recorded(JOB, DONE) == DONE
    assert [(run.cell, run.reports) for run in runs_of(RECORD)] == [(CELL.id, {"scores.json": {"loss": 1.5}})]


def test_workers_must_be_able_to_fetch_the_commit_and_to_share_results(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with pytest.raises(UserError, match="no Prefect server; export PREFECT_API_URL"):
        require_reachable("HEAD")

    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    require_reachable(clone.head_commit())
    (project / "train.py").write_text("print('new')\n")
    commit(project)
    with pytest.raises(UserError, match=r"origin does not have the commit .*; git push first"):
        require_reachable(clone.head_commit())

    git(project, "remote", "remove", "origin")
    with pytest.raises(UserError, match="the git remote `origin`, which is not set"):
        require_reachable("HEAD")
    (project / ".dvc/config").unlink()
    with pytest.raises(UserError, match="the default DVC remote, which is not set"):
        require_reachable("HEAD")


@pytest.mark.parametrize(
    ("outcome", "state", "stays"),
    [
        (StageOutcome("a", "ran"), "COMPLETED", False),
        (StageOutcome("a", "failed", message="no luck", exit_code=1), "FAILED", False),
        (unavailable("a", "the network is away"), "CRASHED", True),
    ],
)
def test_a_worker_keeps_only_the_clone_of_a_cell_that_may_continue_in_it(
    tmp_path: Path, outcome: StageOutcome, state: str, stays: bool
) -> None:
    clone_of_cell = tmp_path / "a"
    clone_of_cell.mkdir()

    assert end_of_cell(outcome, clone_of_cell).type.value == state
    assert [path.name for path in tmp_path.iterdir()] == ["a"] * stays
