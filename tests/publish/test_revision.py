import shutil
from pathlib import Path

import pytest

from stages.formats.evaluation.report import Evaluation
from stages.formats.reports import read_json, write_json
from stages.runtime.errors import RefusedError
from tests.publish.publishing import main, publish_with
from tests.trained_project import write_sections

REPORT = Path("reports/evaluate.json")
PUBLISHED = Path("published/tiny")


def published() -> float:
    return Evaluation.read(PUBLISHED / "main/record/reports/evaluate.json").bits_per_byte


def test_a_worse_model_does_not_move_main_also_after_a_failure_and_a_lost_receipt(project: Path) -> None:
    publish_with(2.0)

    for _ in range(2):
        with pytest.raises(RefusedError, match=r"published/tiny: the model has 3 bits per byte, main has 2;"):
            publish_with(3.0, seed=1)
        (PUBLISHED / "receipt.json").unlink(missing_ok=True)

    assert published() == 2.0


def test_figures_of_other_held_out_documents_are_not_compared(project: Path) -> None:
    publish_with(2.0)
    report = read_json(REPORT)
    report["receipt"]["sets"]["validation"]["documents_sha256"] = "0" * 64
    write_json(REPORT, report)

    with pytest.raises(
        RefusedError, match=r"other held-out documents.*give a model of another corpus its own publish.name"
    ):
        publish_with(1.0, seed=1)
    assert published() == 2.0

    write_sections(project, publish__gate__allow_worse=True)
    publish_with(1.0, seed=1)
    assert published() == 1.0


def test_main_moves_to_an_equal_or_better_model_and_to_a_worse_one_where_that_is_allowed_or_tolerated(
    project: Path,
) -> None:
    for seed, value in enumerate((2.5, 2.5, 2.0), start=3):
        publish_with(value, seed)
        assert published() == value
    write_sections(project, publish__gate__tolerance=0.5)
    publish_with(2.5, seed=1)
    assert published() == 2.5

    write_sections(project, publish__gate__allow_worse=True)
    publish_with(9.0, seed=2)
    assert published() == 9.0


@pytest.mark.parametrize(("before", "now", "loser"), [(0.0, 0.9, "the model"), (0.9, 0.0, "main")])
def test_a_figure_of_a_tokenizer_that_loses_text_is_not_compared_with_one_of_a_tokenizer_that_keeps_it(
    project: Path, before: float, now: float, loser: str
) -> None:
    write_json(REPORT, read_json(REPORT) | {"lost_share": before})
    publish_with(2.0)
    write_json(REPORT, read_json(REPORT) | {"lost_share": now})

    with pytest.raises(RefusedError, match=f"published/tiny: the tokenizer of {loser} loses text"):
        publish_with(1.0, seed=1)

    assert published() == 2.0


def test_a_value_that_is_not_a_number_never_passes(project: Path) -> None:
    text = REPORT.read_text()
    REPORT.write_text(text.replace(f'"bits_per_byte": {read_json(REPORT)["bits_per_byte"]}', '"bits_per_byte": null'))

    with pytest.raises(Exception, match=r"reports/evaluate.json: bits_per_byte"):
        main()


def test_the_gate_fails_closed_where_the_published_evaluation_cannot_be_read(project: Path) -> None:
    publish_with(2.0)
    best = (PUBLISHED / "main").resolve()
    report = best / "record/reports/evaluate.json"
    report.unlink()
    report.write_text("{")
    for remove in (report.unlink, lambda: shutil.rmtree(best), lambda: None):
        with pytest.raises(RefusedError, match="main holds a model without an evaluation to compare with"):
            publish_with(1.0, seed=1)
        remove()
    assert (PUBLISHED / "main").readlink().name == best.name

    publish_with(2.0)
    assert published() == 2.0
