"""What can be known before hours of training: whether `publish` may write to the repositories of params.yaml."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from stages.runtime.entry import EXIT_UNAVAILABLE
from tests.fake_hub import READER, Fault, Hub, Repository
from tests.forked import PYTHON, run_forked
from tests.hub_client import with_short_waits
from tests.publish.test_hub import NAME, environment
from tests.trained_project import write_sections

PREFLIGHT = with_short_waits(
    "stages.publish.hub.preflight", "from stages.publish.hub import client; client.FIRST_WAIT_SECONDS = 0.01"
)


@pytest.fixture(autouse=True)
def sections(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_sections(tmp_path, publish__repository=NAME)


def preflight(hub: Hub, **changes: str) -> subprocess.CompletedProcess[str]:
    return run_forked(PYTHON, PREFLIGHT[1:], Path.cwd(), environment(hub, **changes))


@pytest.mark.parametrize("exists", [True, False])
def test_a_token_that_may_write_or_make_the_repository_passes_and_nothing_changes(hub: Hub, exists: bool) -> None:
    if exists:
        hub.repositories[NAME] = Repository(hub.folder / NAME, private=True)

    result = preflight(hub)

    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert not [line for line in hub.log if not line.startswith("GET")]


@pytest.mark.parametrize(
    ("token", "message"),
    [("", "no token"), ("hf_unknown", "may not write there (status 401)"), (READER, "may not make it; give it write")],
)
def test_a_wrong_token_is_an_error(hub: Hub, token: str, message: str) -> None:
    result = preflight(hub, HF_TOKEN=token)

    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "message"), [("other/model", "only below guests, lab, me"), ("guests/model", "may not make it")]
)
def test_a_name_below_which_the_account_may_not_write_is_an_error(
    tmp_path: Any, hub: Hub, name: str, message: str
) -> None:
    write_sections(tmp_path, publish__repository=name)

    result = preflight(hub)

    assert result.returncode == 2
    assert message in result.stderr


def test_a_public_repository_for_what_should_be_private_is_an_error(hub: Hub) -> None:
    hub.repositories[NAME] = Repository(hub.folder / NAME, private=False)

    assert f"{NAME} exists and is public" in preflight(hub).stderr


def test_the_repositories_of_the_data_set_is_checked_too(tmp_path: Any, hub: Hub) -> None:
    write_sections(tmp_path, publish__repository=NAME, publish__dataset_repository="other/data")

    assert "publish.dataset_repository = other/data: not found" in preflight(hub).stderr


def test_a_hub_that_does_not_answer_is_told_apart(hub: Hub) -> None:
    hub.faults.append(Fault("GET", "503", times=99))

    result = preflight(hub)

    assert result.returncode == EXIT_UNAVAILABLE
    assert "the Hub keeps answering with status 503" in result.stderr


def test_a_data_set_on_the_hub_with_a_model_in_a_folder_is_refused(tmp_path: Any, hub: Hub) -> None:
    write_sections(tmp_path, publish__repository=None, publish__dataset_repository="me/other")

    result = preflight(hub)

    assert result.returncode == 2
    assert "dataset_repository is on the Hub, and the model goes to a folder" in result.stderr
