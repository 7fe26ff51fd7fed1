"""A filter and a kind of source are one new file each: nothing else is edited but params.yaml."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from stages.formats.ledger import read_ledger
from stages.formats.reports import read_json
from stages.runtime.stage_code import StageCode, stage_codes
from tests.small_project import FILES_SOURCE, ROOT, SECTIONS, write_corpus, write_project

FILTER = '''
"""Drops documents that shout."""

from stages.clean.filtering import Filter, Share, above


class Shouting(Filter):
    capital_share_maximum: Share | None

    @staticmethod
    def measure(text):
        return {"capital_share": sum(map(str.isupper, text.text)) / max(len(text.text), 1)}

    def drops(self, features, seed):
        yield from above(features, "capital_share", self.capital_share_maximum)
'''

KIND = '''
"""Lines of a text file, one document each."""

from pathlib import Path
from typing import Literal

from stages.collect.source_kinds import NamedSource


class Lines(NamedSource):
    kind: Literal["lines"]
    file: str

    def items(self, reading):
        for number, line in enumerate(Path(self.file).read_text().splitlines(), start=1):
            yield self.item(f"{self.file}#{number}", line)
'''

FILTER_FILE, KIND_FILE = "stages/clean/filters/shouting.py", "stages/collect/sources/lines.py"
LINES = {name: value for name, value in FILES_SOURCE.items() if name not in ("kind", "globs")}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project with a copy of the code of `collect` and `clean`."""
    monkeypatch.chdir(tmp_path)
    for name in ("__init__.py", "clean", "collect", "code", "formats", "runtime"):
        for path in sorted((ROOT / "stages" / name).rglob("*.py")) or [ROOT / "stages" / name]:
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    write_corpus(tmp_path, 20)
    Path("shout.txt").write_text("ALL THIS IS LOUD\nx = 1  # quiet\n")
    write_project(tmp_path)
    return tmp_path


def add_both() -> None:
    Path(FILTER_FILE).write_text(FILTER)
    Path(KIND_FILE).write_text(KIND)
    filters: dict[str, Any] = SECTIONS["clean"]["filters"] | {"capital_share_maximum": 0.5}
    sources = [FILES_SOURCE, LINES | {"kind": "lines", "name": "shouts", "file": "shout.txt"}]
    write_project(Path(), collect__sources=sources, clean__filters=filters)


def run(stage: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path.cwd()), "PARROTFLOW_WORKERS": "1"}
    command = [sys.executable, "-m", f"stages.{stage}"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_one_file_adds_a_kind_of_source_and_one_a_filter(project: Path) -> None:
    add_both()

    assert [(done.returncode, done.stderr) for done in map(run, ("collect", "clean"))] == [(0, ""), (0, "")]

    ledger: pd.DataFrame = read_ledger()
    added = ledger[ledger["source"] == "shouts"].set_index("path")
    assert added["verdict"].to_dict() == {"shout.txt#1": "capital_share_above", "shout.txt#2": "kept"}
    assert added["capital_share"].to_dict() == {"shout.txt#1": 13 / 16, "shout.txt#2": 0.0}
    assert read_json(Path("reports/clean.json"))["dropped"]["capital_share_above"]["documents"] == 1
    assert read_json(Path("reports/collect.json"))["documents"] == 22


def test_their_parameters_are_checked_as_all_others(project: Path) -> None:
    add_both()
    path = Path("params.yaml")
    path.write_text(path.read_text().replace("capital_share_maximum: 0.5", "capital_share_maximum: 7"))
    assert "clean.filters.capital_share_maximum = 7: Input should be less than" in run("clean").stderr

    Path(FILTER_FILE).unlink()
    assert "clean.filters.capital_share_maximum: unknown parameter (value 7)" in run("clean").stderr
    path.write_text(path.read_text().replace("file: shout.txt", "fil: shout.txt"))
    assert "collect.sources.1.file: missing" in run("collect").stderr


def test_a_change_of_one_reruns_its_stage_and_no_other(project: Path) -> None:
    def changed(before: dict[Path, StageCode]) -> dict[str, list[str]]:
        now = stage_codes(project)
        return {path.stem: old.changes_to(now[path]) for path, old in before.items() if old != now[path]}

    before = stage_codes(project)
    add_both()
    assert changed(before) == {"clean": [f"{FILTER_FILE} is new"], "collect": [f"{KIND_FILE} is new"]}

    before = stage_codes(project)
    Path(FILTER_FILE).write_text(FILTER.replace("str.isupper", "str.islower"))
    assert changed(before) == {"clean": [f"{FILTER_FILE} modified"]}
    Path(KIND_FILE).write_text(KIND.replace("start=1", "start=0"))
    assert changed(before).keys() == {"clean", "collect"}


def test_every_filter_and_every_kind_that_is_shipped_is_code_of_its_stage() -> None:
    codes = {path.stem: set(code.files) for path, code in stage_codes(ROOT).items()}
    for stage, folder in (("clean", "filters"), ("collect", "sources")):
        shipped = {path.relative_to(ROOT).as_posix() for path in (ROOT / "stages" / stage / folder).glob("[!_]*.py")}
        assert shipped
        assert shipped <= codes[stage]
