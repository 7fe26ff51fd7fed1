"""The branch of a run on the Hub: a commit for each exported step in order, and the model last."""

import json
import shutil
from pathlib import Path

import pytest

from stages.card.__main__ import main as write_card
from stages.formats.model_folder import weights_sha256
from stages.formats.revision.execution import Execution
from stages.runtime.entry import EXIT_REFUSED
from tests.fake_hub import Fault, Hub
from tests.formats.revision.records import SESSION
from tests.publish.test_hub import NAME, publish, published
from tests.trained_project import write_model, write_sections

RUN = "0123456789abcdef"
BRANCH = f"run-{RUN}"


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


def test_a_publication_that_is_refused_has_pushed_no_model(project: Path, hub: Hub) -> None:
    write_sections(project, publish__repository=NAME, publish__gate__bits_per_byte_at_most=0.1)

    assert publish(hub).returncode == EXIT_REFUSED

    assert hub.requests("commit") == 0
