"""Forged revisions of the real pipeline: each is refused before anything runs, or named after a reproduction.

The index has their hashes, as a forger would write it.
"""

import json
import platform
import re
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flows.reproduce.reproduction import run_reproduction
from flows.reproduce.revision import read_revision, require_as_published
from flows.reproduce.verdict import verdict_of
from stages.formats.revision.provenance import CARD, CURVES_PICTURE, EXECUTION, PROVENANCE
from stages.formats.revision.verify import verify_files
from stages.runtime.errors import UserError
from tests.flows.reproduce.published import seal


@dataclass
class Forger:
    """Works on one's own copy of a revision."""

    folder: Path

    def json(self, path: str, edit: Callable[[Any], object]) -> None:
        """Edit a JSON file."""
        values = json.loads((self.folder / path).read_bytes())
        edit(values)
        self.add(path, json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n")

    def text(self, path: str, old: str, new: str) -> None:
        """Replace a text everywhere in a file."""
        text = (self.folder / path).read_text(encoding="utf-8")
        assert old in text, f"{old} is not in {path}"
        self.add(path, text.replace(old, new))

    def add(self, path: str, text: str) -> None:
        """Write a file."""
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).unlink(missing_ok=True)
        (self.folder / path).write_text(text, encoding="utf-8")

    def seal(self) -> None:
        """Write the index over the files as they are: the hashes and the name."""
        seal(self.folder)


@pytest.fixture(scope="module")
def project(up_to_date: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forgeries") / "project"
    shutil.copytree(up_to_date, folder, symlinks=True)
    return folder


@pytest.fixture
def forger(project: Path, tmp_path: Path) -> Forger:
    """A forger's copy of a revision, whose files can be written."""
    shutil.copytree(project / "published/tiny/main", tmp_path / "main")
    for path in (tmp_path / "main").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return Forger(tmp_path / "main")


def swap_tokens(tokenizer: Any) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    one, other = list(vocabulary)[-2:]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]


def tokenizer(forger: Forger) -> None:
    forger.json("tokenizer.json", swap_tokens)


def test_what_no_revision_can_hold_is_refused_before_anything_runs(
    forger: Forger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verify_files(forger.folder) == []
    forger.add("modeling_evil.py", "import os\n")
    forger.seal()
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UserError, match=r"is damaged: modeling_evil\.py: is not a file"):
        run_reproduction("main", segment="3-6")
    assert not Path(".parrotflow").exists()


def test_a_revision_of_another_format_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / PROVENANCE).write_text('{"predicate": {"buildDefinition": {"buildType": "urn:of:before"}}}')

    with pytest.raises(UserError, match=f"^main: {PROVENANCE}: ") as refused:
        require_as_published("main", tmp_path)
    assert "is of the format urn:of:before, and this version of parrotflow reads" in str(refused.value)
    assert "damaged" not in str(refused.value)
    assert "fetch it again" not in str(refused.value)


def picture(forger: Forger) -> None:
    content = (forger.folder / CURVES_PICTURE).read_bytes()
    (forger.folder / CURVES_PICTURE).write_bytes(content[:-20] + bytes([content[-20] ^ 1]) + content[-19:])


AFTER: dict[str, tuple[Callable[[Forger], None], str]] = {
    "the card": (lambda f: f.text(CARD, "A model for tests.", "The best model."), f"data/card/{CARD}"),
    "the picture": (picture, f"data/card/{CURVES_PICTURE}"),
    "a tokenizer": (tokenizer, "model/tokenizer.json"),
    "a further configuration": (lambda f: f.add("adapter.json", "{}"), "model/adapter.json"),
}
"""What is forged, and the file that is named."""


@pytest.fixture(scope="module")
def rebuilt(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout of an honest reproduction: first of a segment, then in the same folder of everything."""
    work = tmp_path_factory.mktemp("rebuilt") / "work"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(project)
        for name, segment in (("segment", "3-6"), ("said", None)):
            with (work.parent / name).open("w") as said, redirect_stdout(said):
                assert run_reproduction("published/tiny", yes=True, folder=work, segment=segment) == 0
    return work / "checkout"


def test_of_an_honest_revision_the_card_is_compared_and_the_rest_is_named(rebuilt: Path) -> None:
    said = (rebuilt.parents[1] / "said").read_text(encoding="utf-8")

    assert re.search(r"^card +identical$", said, re.MULTILINE)
    assert "restored by hash, not recomputed: collect, clean, tokenizer, tokenize\n" in said
    assert "output of train, evaluate, generate, harness, score, yardstick, card was recomputed and is byte-" in said
    assert said.count(": equal\n") >= 1


@pytest.mark.parametrize("what", AFTER)
def test_what_only_a_reproduction_can_find_is_named_by_it(
    forger: Forger, tmp_path: Path, project: Path, rebuilt: Path, what: str
) -> None:
    forge, named = AFTER[what]
    forge(forger)
    forger.seal()
    shutil.move(forger.folder, tmp_path / "work/revision")
    assert verify_files(tmp_path / "work/revision") == []
    revision = read_revision("main", tmp_path / "work/revision", tmp_path / "work")

    verdict = verdict_of(revision, rebuilt, [])

    assert verdict.result == "not reproduced"
    assert named in {difference.file for stage in verdict.stages for difference in stage.differences}


def test_another_patch_of_python_in_a_report_is_listed_and_no_failure(
    forger: Forger, tmp_path: Path, rebuilt: Path
) -> None:
    forger.json("record/reports/score.json", lambda values: values.update(python="3.11.0"))
    forger.json(EXECUTION, lambda values: [one["versions"].update(python="3.11.0") for one in values["sessions"]])
    forger.seal()
    shutil.move(forger.folder, tmp_path / "work/revision")
    revision, here = read_revision("main", tmp_path / "work/revision", tmp_path / "work"), platform.python_version()

    verdict = verdict_of(revision, rebuilt, [])

    assert verdict.result == "equal within intervals"
    assert verdict.facts == [f"versions.python: recorded 3.11.0, here {here}"]


def test_a_segment_that_ends_with_a_step_that_is_not_recorded_is_refused(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    with pytest.raises(UserError, match=r"--segment 3-7: step 7 is not recorded; choose from: 3, 6$"):
        run_reproduction("published/tiny", segment="3-7", folder=tmp_path / "work")
    assert not (tmp_path / "work/checkout").exists()


def test_everything_can_be_reproduced_in_the_folder_of_a_segment(rebuilt: Path) -> None:
    """The fixture has seen that the segment is equal, by its exit code."""
    for name in ("segment", "said"):
        said = (rebuilt.parents[1] / name).read_text(encoding="utf-8")
        assert "restored: collect, clean, tokenizer, tokenize\n" in said
    assert "\nbit-identical: " in said
