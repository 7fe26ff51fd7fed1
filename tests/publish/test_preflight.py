"""Before hours of training: the repositories of params.yaml exist, and may be written to."""

from pathlib import Path

import pytest

from stages.publish.hub import main
from stages.runtime.entry import UnavailableError, UserError
from tests.fake_hub import READER, Fault, Hub, Repository
from tests.publish.to_hub import NAME, use
from tests.trained_project import write_sections

DATA = "me/data"


@pytest.fixture(autouse=True)
def sections(tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    use(hub, monkeypatch)
    monkeypatch.chdir(tmp_path)
    write_sections(tmp_path, publish__repository=NAME, publish__dataset_repository=DATA)


def test_it_makes_private_and_empty_repositories_and_may_do_so_again(hub: Hub) -> None:
    main()
    main()

    assert hub.repositories.keys() == {NAME, f"datasets/{DATA}"}
    for repository in hub.repositories.values():
        assert repository.private
        assert repository.commit_count("main") == 1  # the Hub's own


def test_a_token_that_may_only_read_is_an_error_also_if_the_repository_exists(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories[NAME] = Repository(hub.folder / NAME, private=True)
    use(hub, monkeypatch, READER)

    with pytest.raises(UserError, match="access is refused"):
        main()


def test_a_data_set_that_cannot_be_made_is_named_by_its_parameter(hub: Hub) -> None:
    hub.faults += [Fault("POST /api/repos/create", "none"), Fault("POST /api/repos/create", "403")]

    with pytest.raises(UserError, match=f"^publish.dataset_repository = {DATA}, as the user of HF_TOKEN: "):
        main()


def test_a_hub_that_does_not_answer_is_told_apart(hub: Hub) -> None:
    hub.faults.append(Fault(".", "503", times=99))

    with pytest.raises(UnavailableError, match="the Hub does not answer"):
        main()


def test_a_data_set_on_the_hub_with_a_model_in_a_folder_is_refused(tmp_path: Path) -> None:
    write_sections(tmp_path, publish__repository=None, publish__dataset_repository=DATA)

    with pytest.raises(UserError, match="dataset_repository is on the Hub, and the model goes to a folder"):
        main()
