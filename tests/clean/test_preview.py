from pathlib import Path
from typing import Any

import pytest

from stages.clean import preview as module
from stages.clean.__main__ import main
from stages.clean.preview import CHARACTERS, EXAMPLES
from stages.collect.__main__ import main as collect
from stages.formats.cleaning import DroppedBy, Preview
from tests.small_project import write_corpus, write_project

LINES = [f"name{number} = {number}\n" for number in range(200)]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARROTFLOW_WORKERS", "1")
    write_corpus(tmp_path, 12)


def preview(**changes: Any) -> Preview:
    write_project(Path(), **changes)
    collect()
    main()
    return Preview.read()


def dropped_by(found: Preview, verdict: str) -> DroppedBy:
    return next(one for one in found.dropped if one.verdict == verdict)


def test_each_verdict_has_examples_that_say_what_decided() -> None:
    Path("corpus/copy.py").write_text(Path("corpus/module_004.py").read_text() + "\n\n")
    Path("corpus/long.py").write_text("x" * 2000)
    Path("corpus/alike_1.py").write_text("".join(LINES))
    Path("corpus/alike_2.py").write_text("".join(LINES[:-10]))
    Path("passage.txt").write_text("one two three four five")
    Path("corpus/leak.py").write_text("# One two, three: four five at jane@mail.org\n")
    found = preview(
        clean__decontamination={"files": ["passage.txt"], "fields": [], "ngram_size": 5, "minimum_words": 5},
        clean__near_duplicates={"similarity": 0.8, "permutations": 64, "minimum_words": 20},
        clean__masks={"emails": True, "ip_addresses": False, "keys": False},
    )

    shown = {one.verdict: [(two.path, two.because) for two in one.examples] for one in found.dropped}
    assert shown == {
        "contaminated": [("corpus/leak.py", "passage.txt#1: one two three four five")],
        "exact_duplicate": [("corpus/module_004.py", "mine corpus/copy.py")],
        "line_length_maximum_above": [("corpus/long.py", "")],
        "near_duplicate": [("corpus/alike_2.py", "mine corpus/alike_1.py, 0.950")],
    }
    assert dropped_by(found, "contaminated").examples[0].beginning == "# One two, three: four five at <EMAIL>\n"
    (long,) = dropped_by(found, "line_length_maximum_above").examples
    assert (long.beginning, long.is_all, long.bytes) == ("x" * CHARACTERS, False, 2000)


def test_it_is_bounded_whatever_the_documents_are() -> None:
    for number in range(40):
        Path(f"corpus/long_{number}.py").write_text(f"a{number}@mail.org " + "<" * 20_000)
    found = preview()

    assert len(dropped_by(found, "line_length_maximum_above").examples) == EXAMPLES
    assert Path("data/clean/preview.json").stat().st_size < 20_000


def test_the_choice_does_not_depend_on_other_documents_or_on_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        Path(f"corpus/long_{number}.py").write_text(f"x{number}" * 400)
    before = dropped_by(preview(), "line_length_maximum_above").examples
    with monkeypatch.context() as all_of_them:
        all_of_them.setattr(module, "EXAMPLES", 30)
        paths = [one.path for one in dropped_by(preview(), "line_length_maximum_above").examples]
    monkeypatch.setenv("PARROTFLOW_WORKERS", "2")
    for path in paths[10:]:
        Path(path).unlink()

    assert [one.path for one in before] == paths[:EXAMPLES]
    assert dropped_by(preview(), "line_length_maximum_above").examples == before
