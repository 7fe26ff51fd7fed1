"""A filter and a kind of source are one new file each.

Nothing else is edited but params.yaml. The two are those of CONTRIBUTING.md; the examples of docs/how-to/data.md are
checked too.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from stages.clean.params import CleanParams
from stages.collect.params import CollectParams
from stages.formats.documents import read_ledger
from stages.formats.reports import read_json
from stages.runtime.section import check_section
from stages.runtime.stage_code import StageCode, stage_codes
from tests.small_project import FILES_SOURCE, ROOT, SECTIONS, added_file, write_corpus, write_project

FILTER_FILE, KIND_FILE = "stages/clean/filters/shouting.py", "stages/collect/sources/lines.py"
FILTER, KIND = added_file(FILTER_FILE), added_file(KIND_FILE)

LINES = {
    name: value for name, value in FILES_SOURCE.items() if name not in ("kind", "globs", "text", "fields", "part_bytes")
}


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

    ledger: pd.DataFrame = read_ledger().to_pandas()
    added = ledger[ledger["source"] == "shouts"].set_index("path")
    assert added["verdict"].to_dict() == {"shout.txt#1": "capital_share_above", "shout.txt#2": "kept"}
    assert added["capital_share"].to_dict() == {"shout.txt#1": 13 / 16, "shout.txt#2": 0.0}
    assert read_json(Path("reports/clean.json"))["dropped"]["capital_share_above"]["documents"] == 1
    assert read_json(Path("reports/collect.json"))["documents"] == 22


def test_the_quality_classifier_drops_what_is_unlike_the_good_documents(project: Path) -> None:
    Path("stages/clean/filters/quality.py").write_text(added_file("stages/clean/filters/quality.py"))
    good = [path.read_text() for path in sorted(Path("corpus").iterdir())]
    bad = [f"buy cheap {number} now" for number in range(20)]
    rows = [{"text": text, "good": text in good} for text in [*good, *bad]]
    Path("labeled.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("corpus/spam.txt").write_text("buy cheap things now")
    write_project(Path(), clean__filters=SECTIONS["clean"]["filters"] | {"quality_minimum": 0.5})

    assert [run(stage).stderr for stage in ("collect", "clean")] == ["", ""]

    verdicts = read_ledger().to_pandas().set_index("path")["verdict"]
    assert verdicts["corpus/spam.txt"] == "quality_below"
    assert (verdicts == "kept").sum() == len(good)


def test_a_change_of_one_reruns_its_stage_and_no_other_and_a_comment_none(project: Path) -> None:
    def changed(before: dict[Path, StageCode]) -> dict[str, list[str]]:
        now = stage_codes(project)
        return {path.stem: old.changes_to(now[path]) for path, old in before.items() if old != now[path]}

    before = stage_codes(project)
    add_both()
    assert changed(before) == {"clean": [f"{FILTER_FILE} is new"], "collect": [f"{KIND_FILE} is new"]}

    before = stage_codes(project)
    Path(FILTER_FILE).write_text(f"# Loud texts.\n{FILTER}")
    assert changed(before) == {}
    Path(FILTER_FILE).write_text(FILTER.replace("str.isupper", "str.islower"))
    assert changed(before) == {"clean": [f"{FILTER_FILE} modified"]}
    Path(KIND_FILE).write_text(KIND.replace("start=1", "start=0"))
    assert changed(before).keys() == {"clean", "collect"}


@pytest.mark.parametrize(
    ("file", "text", "stage", "owner", "what"),
    [
        (
            "stages/clean/filters/again.py",
            FILTER.replace("capital_share_maximum", "digit_share_maximum"),
            "clean",
            "stages/clean/filters/code.py",
            "parameter `digit_share_maximum`",
        ),
        (
            "stages/collect/sources/again.py",
            KIND.replace('"lines"', '"hub"'),
            "collect",
            "stages/collect/sources/hub.py",
            "kind `hub`",
        ),
    ],
)
def test_a_name_that_is_taken_is_refused(
    project: Path, file: str, text: str, stage: str, owner: str, what: str
) -> None:
    Path(file).write_text(text)

    assert run(stage).stderr == f"error: {owner}: {file} has a {what} already; rename one of them\n"


def test_every_filter_and_every_kind_that_is_shipped_is_code_of_its_stage() -> None:
    codes = {path.stem: set(code.files) for path, code in stage_codes(ROOT).items()}
    for stage, folder in (("clean", "filters"), ("collect", "sources")):
        shipped = {path.relative_to(ROOT).as_posix() for path in (ROOT / "stages" / stage / folder).glob("[!_]*.py")}
        assert shipped
        assert shipped <= codes[stage]


MODELS = {"collect": CollectParams, "clean": CleanParams}
PAGE = (ROOT / "docs/how-to/data.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_a_valid_section_of_params(example: str) -> None:
    for name, section in yaml.safe_load(example).items():
        assert check_section(name, section, MODELS[name])


def test_every_kind_of_source_is_on_the_page() -> None:
    source = CollectParams.model_json_schema()["properties"]["sources"]["items"]["discriminator"]["mapping"]

    assert len(EXAMPLES) == 2
    assert [kind for kind in source if f"`{kind}`" not in PAGE] == []
