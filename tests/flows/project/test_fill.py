"""A params.yaml of an older version is brought up to date, from git's own history."""

import subprocess
from pathlib import Path

import pytest

from flows.project import fill
from flows.project.fill import RENAMED, filled_text
from stages.runtime.dotted import flatten
from stages.runtime.section import Section, read_params_file

ROOT = Path(__file__).parents[3]


class Deep(Section):
    size: int
    new_size: int


class Toy(Section):
    rate: float
    new_name: str
    deep: Deep
    never_committed: int


class Late(Section):
    seed: int


SHIPPED = """\
# What is computed.
toy:
  rate: 0.1      # of learning
  new_name: a    # renamed
  deep:
    size: 1
    new_size: 2  # bytes

late:
  seed: 0        # of draws
"""

MINE = """\
# Mine.
toy:
  rate: 0.5      # my choice
  old_name: b    # as it was called
  extra: 1
  deep:
    size: 7
"""

FILLED = """\
# Mine.
toy:
  rate: 0.5      # my choice
  new_name: b    # as it was called
  extra: 1
  deep:
    size: 7
    new_size: 2  # bytes
late:
  seed: 0        # of draws
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone whose history has the shipped params.yaml, with an older one of the user's own in its folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fill, "section_models", lambda: {"toy": Toy, "late": Late})
    monkeypatch.setattr(fill, "RENAMED", {"toy.old_name": "toy.new_name", "toy.gone": "toy.elsewhere"})
    fill._committed_versions.cache_clear()
    Path("params.yaml").write_text(SHIPPED)
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "shipped"]):
        subprocess.run(["git", *command], check=True)
    Path("params.yaml").write_text(MINE)


def test_what_is_missing_is_added_and_what_was_renamed_is_moved_with_its_value() -> None:
    text, left = filled_text()

    assert text == FILLED
    assert left == [
        "toy.never_committed: missing, and no params.yaml in git has it; set it by hand",
        "toy.extra: unknown; correct its name or remove it",
    ]


def test_what_is_up_to_date_stays_byte_for_byte() -> None:
    Path("params.yaml").write_text(SHIPPED)

    assert filled_text()[0] == SHIPPED


def test_a_renamed_parameter_has_its_new_name_in_params_yaml_and_not_its_old_one() -> None:
    keys = set(flatten(read_params_file(ROOT / "params.yaml")))
    # Decontamination is off by default, so its parameters are not in the file.
    assert {new for new in RENAMED.values() if not new.startswith("clean.decontamination.")} <= keys
    assert not RENAMED.keys() & keys
