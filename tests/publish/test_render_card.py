"""The card alone: what publish says of a model, written to a folder and not published."""

import sys
from pathlib import Path

import pytest

from stages.formats.revision.provenance import CARD, INPUTS, InputListing
from stages.publish.__main__ import main as publish
from stages.publish.render_card import main

MAIN = Path("published/tiny/main")


def test_it_writes_what_was_published(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish()
    monkeypatch.setattr(sys, "argv", ["card", "rendered"])

    main()

    assert Path("rendered", CARD).read_bytes() == (MAIN / CARD).read_bytes()
    published, rendered = InputListing.find(MAIN / INPUTS), InputListing.find(Path("rendered/inputs.json"))
    assert published is not None
    assert rendered is not None
    assert rendered.sources == published.sources
