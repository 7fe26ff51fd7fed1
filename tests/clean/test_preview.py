from pathlib import Path
from typing import Any

import pytest

from stages.clean import preview as module
from stages.clean.__main__ import main
from stages.clean.preview import CONTEXT_CHARACTERS, EXAMPLES, EXCERPT_CHARACTERS
from stages.collect.__main__ import main as collect
from stages.formats.cleaning import DroppedBy, MaskedValue, Preview
from tests.small_project import write_corpus, write_project

LINES = [f"name{number} = {number}\n" for number in range(200)]
NEAR = {"similarity": 0.8, "permutations": 64, "minimum_words": 20}
MASKS = {"emails": True, "ip_addresses": True, "keys": True}
GITHUB = "ghp" + "_" + "wWPw5k4aXcaT4fNP0UcnZwJUVFk6LO0pINUx"


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


def test_a_near_duplicate_is_shown_with_its_pair_from_where_they_differ() -> None:
    Path("corpus/alike_1.py").write_text("".join(LINES))
    Path("corpus/alike_2.py").write_text("".join([*LINES[:100], "other = 1\n", *LINES[101:]]))
    Path("corpus/alike_3.py").write_text("".join([*LINES[:100], "other = 1\n", *LINES[101:170]]))
    found = dropped_by(preview(clean__near_duplicates=NEAR), "near_duplicate")

    (second,) = (one for one in found.examples if one.document.path == "corpus/alike_2.py")
    assert found.documents == 2
    assert second.resembled is not None
    assert second.document.text.startswith("other = 1\nname101 = 101\n")
    assert second.resembled.text.startswith("name100 = 100\nname101 = 101\n")
    assert second.document.start == second.resembled.start == len("".join(LINES[:100]))
    assert len(second.document.text) == EXCERPT_CHARACTERS
    assert second.similarity is not None
    assert 0.98 < second.similarity < 1


def test_texts_that_were_shown_before_are_not_read_from_their_shards_again(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("corpus/long.py").write_text("x" * 2000)
    Path("corpus/mail.py").write_text("write_to = 'jane@mail.org'\n" * 20)
    before = preview(clean__masks=MASKS)
    assert before.dropped
    assert any(kind.examples for kind in before.masked)
    monkeypatch.setattr(module, "read_shard", None)

    main()
    assert Preview.read() == before


def test_filters_copies_and_passages_have_examples_too() -> None:
    Path("corpus/copy.py").write_text(Path("corpus/module_004.py").read_text() + "\n\n")
    Path("corpus/long.py").write_text("x" * 2000)
    Path("passage.txt").write_text("one two three four five")
    Path("corpus/leak.py").write_text("".join(LINES) + "# One two, three: four five\n")
    sets = {"files": ["passage.txt"], "fields": [], "ngram_size": 5, "minimum_words": 5}
    found = preview(clean__decontamination=sets)

    assert [one.verdict for one in found.dropped] == ["contaminated", "exact_duplicate", "line_length_maximum_above"]
    (leak,), (copy,), (long,) = (one.examples for one in found.dropped)
    assert (leak.passage, leak.document.text) == (
        "passage.txt#1: one two three four five",
        "# One two, three: four five\n",
    )
    assert leak.document.is_end
    assert copy.similarity == 1
    assert copy.resembled is not None
    assert copy.resembled.path == "corpus/copy.py"
    assert copy.document.text.strip() == copy.resembled.text.strip() != ""
    assert (long.document.text, long.document.is_end, long.resembled) == ("x" * EXCERPT_CHARACTERS, False, None)


def masked(found: Preview) -> dict[str, MaskedValue]:
    return {one.kind: one.examples[0] for one in found.masked}


def test_a_masked_value_is_shown_in_its_line_and_credentials_are_cut_short() -> None:
    Path("corpus/secret.py").write_text(f"x = 1\nsend('jane@mail.org', '8.8.8.8', '{GITHUB}')\ny = 2\n")
    found = preview(clean__masks=MASKS)
    shown = masked(found)

    assert [(one.kind, one.documents) for one in found.masked] == [("emails", 1), ("ip_addresses", 1), ("keys", 1)]
    assert (shown["emails"].before, shown["emails"].value) == ("send('", "jane@mail.org")
    assert shown["emails"].after == "', '8.8.8.8', 'ghp_…')"
    assert (shown["ip_addresses"].value, shown["keys"].value) == ("8.8.8.8", "ghp_…")
    assert GITHUB not in Path("data/clean/preview.json").read_text()


def test_it_is_bounded_whatever_the_documents_are() -> None:
    for number in range(40):
        Path(f"corpus/long_{number}.py").write_text(f"a{number}@mail.org " + "<" * 20_000)
    found = preview(clean__masks=MASKS)

    assert len(dropped_by(found, "line_length_maximum_above").examples) == EXAMPLES
    assert [len(one.examples) for one in found.masked] == [EXAMPLES, 0, 0]
    assert all(len(one.after) <= CONTEXT_CHARACTERS for kind in found.masked for one in kind.examples)
    assert Path("data/clean/preview.json").stat().st_size < 20_000


def test_the_choice_does_not_depend_on_other_documents_or_on_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        Path(f"corpus/long_{number}.py").write_text(f"x{number}" * 400)
    before = preview()
    with monkeypatch.context() as all_of_them:
        all_of_them.setattr(module, "EXAMPLES", 30)
        ids = [one.document.path for one in dropped_by(preview(), "line_length_maximum_above").examples]
    monkeypatch.setenv("PARROTFLOW_WORKERS", "2")
    for name in ids[10:]:
        Path(name).unlink()
    after = preview()

    assert [one.document.path for one in dropped_by(before, "line_length_maximum_above").examples] == ids[:EXAMPLES]
    assert (
        dropped_by(after, "line_length_maximum_above").examples
        == dropped_by(before, "line_length_maximum_above").examples
    )
