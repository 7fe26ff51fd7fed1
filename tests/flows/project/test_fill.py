"""A params.yaml of an older version is brought up to date, from git's own history."""

import subprocess
from pathlib import Path

import pytest
import yaml

from flows.plan.params import section_models
from flows.project import fill
from flows.project.fill import RENAMED, filled_text
from stages.runtime.dotted import differences, flatten
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


class Rows(Section):
    count: int
    width: int


class Late(Section):
    seed: int
    rows: Rows


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
  rows:          # of a table
    count: 24
    width: 80    # characters
"""

MINE = """\
# Mine.
toy:
  rate: 0.5      # my choice
  old_name: b    # as it was called
  extra: 1
  deep:
    size: 7
  lines:
    count: 3     # as I like it
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
  rows:          # of a table
    count: 3  # as I like it
    width: 80    # characters
"""

NEVER_COMMITTED = "toy.never_committed: missing, and no params.yaml in git has it; set it by hand"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone whose history has the shipped params.yaml, with an older one of the user's own in its folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fill, "section_models", lambda: {"toy": Toy, "late": Late})
    renamed = {"toy.old_name": "toy.new_name", "toy.gone": "toy.elsewhere", "toy.lines": "late.rows"}
    monkeypatch.setattr(fill, "RENAMED", renamed)
    fill._committed_versions.cache_clear()
    subprocess.run(["git", "init", "-q"], check=True)
    commit(SHIPPED)
    Path("params.yaml").write_text(MINE)


def commit(text: str) -> None:
    """A version of params.yaml."""
    Path("params.yaml").write_text(text)
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["add", "-A"], [*identity, "commit", "-qm", "shipped"]):
        subprocess.run(["git", *command], check=True)


def test_what_is_missing_is_added_and_what_was_renamed_is_moved_with_its_value() -> None:
    text, left = filled_text()

    assert text == FILLED
    assert left == [NEVER_COMMITTED, "toy.extra: unknown; correct its name or remove it"]


def test_what_is_up_to_date_stays_byte_for_byte() -> None:
    Path("params.yaml").write_text(SHIPPED)

    assert filled_text()[0] == SHIPPED


def test_a_renamed_parameter_has_its_new_name_in_params_yaml_and_not_its_old_one() -> None:
    leaves = flatten(read_params_file(ROOT / "params.yaml"))
    keys = {leaf.rsplit(".", deeper)[0] for leaf in leaves for deeper in range(3)}
    # Decontamination is off by default, so its parameters are not in the file.
    assert {new for new in RENAMED.values() if not new.startswith("clean.decontamination.")} <= keys
    assert not RENAMED.keys() & keys


def test_of_a_parameter_under_both_names_the_new_one_counts_and_the_old_one_is_told() -> None:
    Path("params.yaml").write_text(SHIPPED.replace("  rate:", "  old_name: b\n  rate:"))

    text, left = filled_text()

    assert "new_name: a " in text
    assert left == [NEVER_COMMITTED, "toy.old_name: is now toy.new_name, which is set too; remove one"]


def test_the_samples_that_evaluate_wrote_move_to_the_stage_that_writes_them_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fill, "section_models", lambda: section_models(ROOT))
    monkeypatch.setattr(fill, "RENAMED", RENAMED)
    shipped = read_params_file(ROOT / "params.yaml")
    commit((ROOT / "params.yaml").read_text())
    sections = {name: dict(values) for name, values in shipped.items() if name != "generate"}
    sections["evaluate"]["samples"] = shipped["generate"]["headers"] | {"count": 7}
    Path("params.yaml").write_text(yaml.safe_dump(sections))

    text, left = filled_text()

    changed = differences("", shipped, yaml.safe_load(text))
    assert (list(changed), left) == ([("generate.headers.count", shipped["generate"]["headers"]["count"], 7)], [])
