"""The page of a published revision: its card as HTML, with the curves of the revision before it."""

import re
import shutil
from pathlib import Path

import pytest

from stages.formats.reports import CURVES, read_json, write_json
from stages.publish.__main__ import main as publish
from stages.publish.page import revision_before, write_page
from stages.publish.registry import Folder
from tests.publish.commands.test_published import Terminal, published  # noqa: F401 (a fixture)
from tests.trained_project import write_model

PUBLISHED = Path("published/tiny")


def publish_with(loss: float, seed: int) -> str:
    """Publish a model with a curve that ends in this loss, and that curve in its record; the revision's name."""
    CURVES.mkdir(parents=True, exist_ok=True)
    (CURVES / "training_loss.tsv").write_text(f"step\ttraining_loss\n1\t5.0\n9\t{loss}\n")
    write_model(Path(), seed=seed)
    report = Path("reports/evaluate.json")
    write_json(report, read_json(report) | {"bits_per_byte": loss})
    publish()
    revision = (PUBLISHED / "main").resolve()
    shutil.copytree(CURVES, revision / "record/reports/curves")
    return revision.name


def test_it_has_the_card_and_the_curves_with_those_before_in_grey(project: Path) -> None:
    first, second = publish_with(3.0, 0), publish_with(2.0, 1)
    registry = Folder(PUBLISHED)

    pages = {name: write_page(registry, name).read_text() for name in (first, second)}

    assert revision_before(registry, first) is None
    assert revision_before(registry, second) == first
    assert all("<h2>Evaluation</h2>" in page and "<td" in page for page in pages.values())
    pictures = {re.search(r'<img src="(data:image/png[^"]*)"', page)[1] for page in pages.values()}  # type: ignore[index]
    assert len(pictures) == 2
    assert f"{first}, is grey" in pages[second]
    assert "is grey" not in pages[first]


def test_markup_in_a_card_stays_text_and_nothing_is_fetched(project: Path) -> None:
    name = publish_with(3.0, 0)
    card = PUBLISHED / "revisions" / name / "README.md"
    card.chmod(0o644)
    card.write_text(card.read_text() + "\n<script>alert(1)</script>\n\n[here](javascript:alert(1))\n")

    page = write_page(Folder(PUBLISHED), name).read_text()

    assert "<script" not in page
    assert 'href="javascript' not in page
    assert "&lt;script&gt;" in page
    assert re.findall(r'src="(?!data:)', page) == []


def test_without_a_screen_the_command_says_where_the_page_is(
    project: Path,
    published: Terminal,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = publish_with(3.0, 0)
    for variable in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("sys.platform", "linux")

    assert published("show", "--page").split()[-1] == str(Path(f".parrotflow/pages/{name}.html").absolute())
