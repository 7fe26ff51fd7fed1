"""Which change reruns what: the table of docs/reference/change-matrix.md, observed on the real pipeline.

Every row makes one change in a copy of a pipeline that is up to date, asks for the plan, runs `dvc repro`, and compares
the stages that ran. `foreseen` are the states of the plan; a `maybe` that did not run is the early cut-off.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from stages.runtime.stage_code import pinned
from tests.flows.small_pipeline import STAGES, environment, repro
from tests.small_project import PARROTFLOW, added_file, run_module


@dataclass(frozen=True)
class Row:
    """A change and what it makes run."""

    change: str
    make: Callable[[Path], None]
    ran: list[str]
    may: list[str] = field(default_factory=list)
    """Stages that the plan says may run, and that were cut off."""
    variables: dict[str, str] = field(default_factory=dict)


def param(before: str, after: str) -> Callable[[Path], None]:
    return replace("params.yaml", before, after)


def replace(name: str, before: str, after: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert before in text
        (folder / name).write_text(text.replace(before, after, 1))

    return change


def add_comment(folder: Path) -> None:
    path = folder / "stages/train/loop.py"
    path.write_text(path.read_text() + "\n# One more remark.\n")


def add_line(folder: Path) -> None:
    path = folder / "stages/train/loop.py"
    path.write_text(path.read_text() + "\nUNUSED = 1\n")


def add_document(folder: Path) -> None:
    (folder / "corpus" / "module_new.py").write_text(
        "def brand_new(value):\n    result = value * 3\n    return result\n"
    )


def add_filter(folder: Path) -> None:
    file = "stages/clean/filters/shouting.py"
    (folder / file).write_text(added_file(file))
    param("    generated: true\n", "    generated: true\n    capital_share_maximum: 1.0\n")(folder)


def upgrade(folder: Path) -> None:
    """A release of fastokens that is installed before the first on the path, and locked."""
    replace("requirements.lock", "fastokens==", "fastokens==99.")(folder)
    _, version = pinned(folder / "requirements.lock")["fastokens"]
    metadata = folder / f"fastokens-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: fastokens\nVersion: {version}\n")


ON_TOKENS = [stage for stage in STAGES[5:] if stage != "yardstick"]
"""The stages that depend on the token stores."""

ROWS = [
    Row("nothing", lambda folder: None, []),
    Row("a learning rate", param("muon_learning_rate: 0.003", "muon_learning_rate: 0.002"), ON_TOKENS[1:]),
    Row("the vocabulary size", param("vocabulary_size: 300", "vocabulary_size: 290"), [*STAGES[3:5], *ON_TOKENS]),
    Row(
        "a filter threshold that drops nothing new",
        param("line_length_maximum: 1000", "line_length_maximum: 900"),
        ["clean"],
        may=STAGES[3:],
    ),
    Row("a comment in train's code", add_comment, ["code"]),
    Row(
        "a line of train's code that does not change the result",
        add_line,
        ["code", "train"],
        may=ON_TOKENS[2:],
    ),
    Row(
        "a filter of one's own that drops nothing, a new column of the ledger",
        add_filter,
        ["code", "clean", "corpus_page"],
        may=[stage for stage in STAGES[3:] if stage != "corpus_page"],
    ),
    Row("a new document", add_document, STAGES[1:]),
    Row("the number of header samples", param("count: 3", "count: 2"), ["generate", "card", "publish"], may=["score"]),
    Row("the card's text", param("A model for tests.", "Another text."), ["card", "publish"]),
    Row("the launch preset", lambda folder: None, [], variables={"PARROTFLOW_LAUNCH": "cpu_2"}),
    Row("a version of fastokens", upgrade, ["code", "tokenize"], may=ON_TOKENS),
]


MOST_STAGES = 4
"""A row that reruns more takes as long as the whole pipeline."""

CASES = [
    pytest.param(row, id=row.change, marks=pytest.mark.acceptance if len(row.ran) > MOST_STAGES else ()) for row in ROWS
]


@pytest.mark.parametrize("row", CASES)
def test_a_change_reruns_what_it_affects_and_nothing_else(row: Row, up_to_date: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    shutil.copytree(up_to_date, folder, symlinks=True)
    row.make(folder)

    why = run_module(PARROTFLOW, ["why", "--json"], folder, environment(folder, **row.variables))
    assert why.returncode == 0, why.stderr
    plan = json.loads(why.stdout.splitlines()[-1])["stages"]
    ran = repro(folder, **row.variables)

    assert ran == row.ran
    states = {stage["name"]: stage["state"] for stage in plan if stage["state"] != "up to date"}
    assert sorted(states) == sorted({*row.ran, *row.may})
    assert all(states[name] == "maybe" for name in row.may)
    assert all(stage["why"] for stage in plan if stage["state"] != "up to date")


def test_the_docs_show_this_table() -> None:
    lines = ["| what changed | ran | was looked at and skipped |", "|---|---|---|"]
    for row in ROWS:
        ran = ", ".join(row.ran) or "nothing"
        lines.append(f"| {row.change} | {'all but code' if row.ran == STAGES[1:] else ran} | {', '.join(row.may)} |")

    page = (Path(__file__).parents[3] / "docs/reference/change-matrix.md").read_text(encoding="utf-8")
    assert "\n".join(lines) in page, "\n".join(lines)
