from pathlib import Path

import pytest

from flows.plan.params import check_params
from stages.runtime.entry import UserError

ROOT = Path(__file__).parents[3]


def checked(folder: Path, before: str, after: str) -> None:
    text = (ROOT / "params.yaml").read_text()
    assert before in text
    (folder / "params.yaml").write_text(text.replace(before, after, 1))
    check_params(folder / "params.yaml")


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_projects_own_parameters_are_right() -> None:
    check_params()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("  max_steps: ", "  max_stesp: 3\n  max_steps: ", "train.max_stesp: unknown parameter (value 3)"),
        ("train:\n  seed: 0", "train:\n  seed: -1", "train.seed = -1: Input should be greater than or equal to 0"),
        ("\ntokenize:\n", "\ntokenise:\n", "tokenise: no stage has such a section"),
    ],
)
def test_a_fault_in_any_section_is_found_before_anything_runs(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    with pytest.raises(UserError) as refused:
        checked(tmp_path, before, after)

    assert message in str(refused.value)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        checked(tmp_path, "train:\n  seed: 0", "nonesuch: 1\ntrain:\n  seed: -1\n  sead: 1")

    assert len(str(refused.value).splitlines()) == 3
