"""Revisions that were forged, or made to do harm: what is refused before any of their code runs."""

from pathlib import Path

import pytest

from flows.reproduce.prepare.data import copied
from flows.reproduce.revision import is_outside
from stages.runtime.entry import UserError


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "checkout").mkdir()
    return tmp_path / "checkout"


@pytest.mark.parametrize("link", [False, True])
def test_input_data_outside_of_the_checkout_is_never_touched(tmp_path: Path, checkout: Path, link: bool) -> None:
    mine = tmp_path / "corpus"
    mine.mkdir()
    (mine / "text.txt").write_text("mine")
    (checkout / "corpus").symlink_to(mine)

    with pytest.raises(UserError, match="outside of the project"):
        copied(tmp_path, checkout, "corpus" if link else str(mine))

    assert (mine / "text.txt").read_text() == "mine"


def test_input_data_is_not_deleted_to_be_replaced_by_itself(checkout: Path) -> None:
    (checkout / "corpus").mkdir()

    assert not copied(checkout / "corpus", checkout, "corpus")
    assert not copied(checkout.parent, checkout, "corpus")
    assert (checkout / "corpus").is_dir()


def test_a_path_out_of_the_project_is_known_by_its_form() -> None:
    assert [is_outside(path) for path in ("/etc/x", "a/../../x", "data/x")] == [True, True, False]
