"""The branch of a run on the Hub: a commit for each exported step in order, and the model last."""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stages.card.__main__ import main as write_card
from stages.formats.model_folder import export_path, weights_sha256
from stages.formats.revision.execution import Execution
from stages.runtime.entry import EXIT_REFUSED
from tests.fake_hub import READER, Fault, Hub
from tests.formats.revision.records import SESSION
from tests.hub_client import with_short_waits
from tests.publish.test_hub import NAME, environment, publish, published
from tests.trained_project import write_model, write_sections

RUN = "0123456789abcdef"
BRANCH = f"run-{RUN}"
PUSH = with_short_waits(
    "stages.publish.hub.push_steps",
    "from stages.publish.hub import client, push_steps; client.FIRST_WAIT_SECONDS = 0.01",
)
CHECKPOINTS = Path(".parrotflow/checkpoints") / RUN


@pytest.fixture(autouse=True)
def trained(project: Path) -> None:
    """A model with two exported steps, of a run with a fingerprint."""
    for step in (100, 200):
        export(project, step)
    write_model(project, seed=0)
    for folder in project.glob("exported-*"):
        shutil.copytree(folder, project / "model" / folder.name.removeprefix("exported-"))
    Execution(weights_sha256=weights_sha256(), fingerprint=RUN + "0" * 16, sessions=[SESSION], checkpoints={}).write()
    write_sections(project, publish__repository=NAME)


def export(project: Path, step: int) -> None:
    """What training exports after a step, in a folder `exported-step-N`."""
    write_model(project, seed=step)
    shutil.copytree(
        project / "model", project / f"exported-step-{step:08d}", ignore=shutil.ignore_patterns("tokenizer*")
    )


def titles(hub: Hub, branch: str = BRANCH) -> list[str]:
    log = hub.repositories[NAME].git("log", "--reverse", "--format=%s", branch).decode().splitlines()
    assert log[0] == "initial"
    return [title.split(" of run ")[0] for title in log[1:]]


def test_a_branch_has_a_commit_for_each_step_in_order_and_the_model_last_each_with_a_tag(hub: Hub) -> None:
    receipt = json.loads(json.dumps(published(hub)))

    repository = hub.repositories[NAME]
    revision = receipt["revision"]
    assert receipt["run"] == RUN
    assert titles(hub) == ["step-00000100", "step-00000200", "model"]
    assert repository.refs("tags") == {
        f"{revision}-step-00000100": receipt["steps"]["100"],
        f"{revision}-step-00000200": receipt["steps"]["200"],
        revision: receipt["commit"],
    }
    assert repository.resolve(BRANCH) == receipt["commit"]
    assert repository.tree("main") == repository.tree(receipt["commit"])
    assert set(repository.tree(receipt["steps"]["100"])) == {
        ".gitattributes",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_another_card_adds_one_commit(project: Path, hub: Hub) -> None:
    first = published(hub)
    write_sections(project, publish__repository=NAME, card__description="Another card.")
    write_card()

    second = published(hub)

    assert titles(hub) == ["step-00000100", "step-00000200", "model", "model"]
    assert second["steps"] == first["steps"]
    assert len(hub.repositories[NAME].refs("tags")) == 6


def test_the_same_run_with_other_weights_of_a_step_gets_commits_of_its_own(project: Path, hub: Hub) -> None:
    published(hub)
    shutil.copyfile("model/model.safetensors", "model/step-00000200/model.safetensors")
    write_sections(project, publish__repository=NAME, card__description="Another card.")
    write_card()

    published(hub)

    assert titles(hub)[3:] == ["step-00000200", "model"]


@pytest.mark.parametrize(("earlier", "kind"), [(0, "race"), (1, "lost")])
def test_a_fault_at_any_commit_makes_no_second_one(hub: Hub, earlier: int, kind: str) -> None:
    hub.faults += [Fault(f"POST .*/commit/{BRANCH}", "none", times=earlier), Fault(f"POST .*/commit/{BRANCH}", kind)]

    published(hub)

    assert [title for title in titles(hub) if title != "race"] == ["step-00000100", "step-00000200", "model"]


def test_the_record_of_the_first_publication_stays_and_main_has_it_too(project: Path, hub: Hub) -> None:
    first = published(hub)
    repository = hub.repositories[NAME]
    repository.commit("main", {"provenance.json": b"{}\n"}, [], "by hand")
    Path("requirements.lock").write_text(Path("requirements.lock").read_text() + "another==1.0\n")

    assert published(hub)["commit"] == first["commit"]

    assert repository.tree("main") == repository.tree(first["commit"])


def test_without_a_record_of_the_run_the_branch_is_named_for_the_revision(hub: Hub) -> None:
    Path("reports/train_execution.json").unlink()

    receipt = published(hub)

    assert "run" not in receipt
    assert titles(hub, f"run-{receipt['revision']}") == ["step-00000100", "step-00000200", "model"]


@contextmanager
def pushing(hub: Hub, **changes: str) -> Iterator["subprocess.Popen[str]"]:
    """The process that pushes steps; what it has pushed or warned of is in its output."""
    process = subprocess.Popen(
        PUSH,
        env=environment(hub, **changes),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        read_until(process, "exported steps go to")  # it has looked at what is there
        yield process
    finally:
        process.kill()
        process.wait()


def train_exports(project: Path, step: int) -> None:
    """Training has exported a step: it appears whole."""
    path = export_path(CHECKPOINTS, step, 300)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    shutil.copytree(project / f"exported-step-{step:08d}", partial)
    partial.rename(path)


def with_training(project: Path) -> None:
    write_sections(project, publish__repository=NAME, publish__push_steps_during_training=True)
    with Path("params.yaml").open("a") as file:
        file.write("train: {export_steps: [200, 100], max_steps: 300}\n")


def read_until(process: "subprocess.Popen[str]", words: str) -> str:
    assert process.stdout is not None
    said = ""
    while words not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    return said


def test_steps_are_pushed_while_training_runs_and_publish_makes_no_second_commits(project: Path, hub: Hub) -> None:
    with_training(project)
    with pushing(hub) as process:
        train_exports(project, 100)
        read_until(process, f"pushed step-00000100 to {NAME}")
        train_exports(project, 200)
        read_until(process, f"pushed step-00000200 to {NAME}")
        assert process.wait(100) == 0  # nothing is left to push
    pushed = titles(hub)
    assert pushed == ["step-00000100", "step-00000200"]
    assert hub.repositories[NAME].commit_count("main") == 1

    published(hub)

    assert titles(hub) == [*pushed, "model"]


def test_a_pusher_that_is_killed_in_the_middle_is_made_up_for_by_publish(project: Path, hub: Hub) -> None:
    with_training(project)
    hub.faults.append(Fault(f"POST .*/commit/{BRANCH}", "silence"))
    with pushing(hub) as process:
        train_exports(project, 100)
        while not hub.requests(f"POST .*/commit/{BRANCH}"):
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == -signal.SIGTERM

    published(hub)

    assert titles(hub) == ["step-00000100", "step-00000200", "model"]


def test_a_hub_that_does_not_answer_is_a_warning_and_the_step_is_tried_again(project: Path, hub: Hub) -> None:
    with_training(project)
    hub.faults.append(Fault("POST /api/repos/create", "500", times=5))
    with pushing(hub) as process:
        train_exports(project, 100)
        said = read_until(process, "pushed step-00000100")

    assert f"warning: publish.repository = {NAME}: the Hub keeps answering with status 500" in said


def test_a_token_that_may_not_write_ends_the_pusher_with_one_message(project: Path, hub: Hub) -> None:
    with_training(project)
    with pushing(hub, HF_TOKEN=READER) as process:
        train_exports(project, 100)
        said = read_until(process, "error: ")
        assert process.wait(100) == 2

    assert "may not write there" in said
    assert "Traceback" not in said


def test_a_pusher_ends_when_the_run_that_started_it_is_gone(project: Path, hub: Hub) -> None:
    with_training(project)
    with pushing(hub) as process:
        assert process.stdin is not None
        process.stdin.close()

        assert process.wait(100) == 0


def test_a_publication_that_is_refused_has_pushed_no_model(project: Path, hub: Hub) -> None:
    write_sections(project, publish__repository=NAME, publish__gate__bits_per_byte_at_most=0.1)

    assert publish(hub).returncode == EXIT_REFUSED

    assert hub.requests("commit") == 0
