"""An evaluation of one's own is in the card and in the Hub's model-index, and publish does not know it."""

import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from stages.card.__main__ import main
from stages.card.inputs import read_inputs
from stages.formats.evaluation.generation import Generation
from stages.formats.evaluation.scores import Measurements, TableMetric, read_measurements
from stages.formats.model_folder import weights_sha256
from stages.formats.reports import read_json, write_json
from stages.runtime.errors import UserError

MAIN, REPORT = Path("data/card"), Path("reports/riddles.json")


def write_riddles(**changes: object) -> None:
    metrics = {
        "solved": TableMetric(label="solved *riddles*", unit="share", value=0.25, interval_95=(0.125, 0.5), over=1200),
        "seconds": TableMetric(label="time", unit="s", value=None, over=3),
    }
    Measurements(
        title="Riddles",
        data_set="owner/riddles",
        counted="riddles",
        convention="Each is asked | once.",
        weights_sha256=weights_sha256(),
        versions={"numpy": "2.0"},
        metrics=metrics,
    ).model_copy(update=changes).write(REPORT)
    declare(str(REPORT))


def declare(*deps: str) -> None:
    """dvc.yaml with these deps of the card."""
    Path("dvc.yaml").write_text(json.dumps({"stages": {"card": {"cmd": "python -m stages.card", "deps": deps}}}))


def test_the_card_has_its_table_and_the_model_index_its_metrics(project: Path) -> None:
    write_riddles()

    main()

    text = (MAIN / "README.md").read_text()
    assert "\n\n## Riddles\n\n| metric | unit | value | 95 % interval | riddles |\n" in text
    assert "| solved \\*riddles\\* | share | 0.25 | 0.125 to 0.5 | 1,200 |\n| time | s |" not in text  # by name
    assert "| time | s | none |  | 3 |\n| solved \\*riddles\\* | share | 0.25 | 0.125 to 0.5 | 1,200 |\n\n" in text
    assert "\nMeasured on owner/riddles with numpy 2.0. Each is asked \\| once.\n\n## " in text
    assert "\n\n\n" not in text
    (result,) = (one for one in ModelCard.load(MAIN / "README.md").data.eval_results if one.metric_type == "solved")
    assert (result.dataset_type, result.dataset_name, result.metric_value) == ("owner/riddles", "Riddles", 0.25)
    assert result.metric_name == "solved *riddles* (share), 95 % interval 0.125 to 0.5"


def test_a_report_that_is_missing_or_damaged_is_refused(project: Path) -> None:
    Path("reports/evaluate.json").rename("elsewhere")
    with pytest.raises(UserError, match=r"^reports/evaluate\.json: not found; run `dvc repro`, which makes it"):
        main()
    Path("elsewhere").rename("reports/evaluate.json")
    write_json(REPORT, {"format": "measurements"})
    with pytest.raises(UserError, match=r"reports/riddles\.json: title: Field required; run `dvc repro card`"):
        main()


def test_what_no_record_would_hold_is_refused(project: Path) -> None:
    write_riddles()
    declare("reports/other.json")
    with pytest.raises(UserError, match=r"^reports/riddles\.json: dvc\.yaml does not list it among the deps"):
        read_inputs()
    declare("reports")
    read_inputs()


def test_a_measurement_of_another_model_is_refused(project: Path) -> None:
    write_riddles(weights_sha256="0" * 64)

    with pytest.raises(
        UserError, match=r"^reports/riddles\.json: was not measured on the weights .* list model among the deps"
    ):
        read_inputs()


def test_an_evaluation_of_a_damaged_copy_of_the_model_is_refused(project: Path) -> None:
    report = read_json(Generation.path)
    report["receipts"]["weights_sha256"] = "0" * 64
    write_json(Generation.path, report)

    with pytest.raises(
        UserError, match=r"^reports/generate\.json: was measured on a damaged copy .*`dvc repro --force"
    ):
        read_inputs()


def test_a_damaged_report_is_an_error_and_one_of_another_kind_is_none(tmp_path: Path) -> None:
    report = tmp_path / "riddles.json"
    for text in ("{}", "[]", '{"format": "another"}'):
        report.write_text(text)
        assert read_measurements(tmp_path) == {}
    for text in ("", '{"format": "measurements"', "\x00"):
        report.write_text(text)
        with pytest.raises(UserError, match=r"riddles\.json: not valid JSON"):
            read_measurements(tmp_path)


@pytest.mark.parametrize("title", ["held-out documents", "another"])
def test_it_cannot_pass_for_the_evaluation_of_the_pipeline(project: Path, title: str) -> None:
    forged = {"bits_per_byte": TableMetric(label="bits per byte", value=0.25, over=9)}
    write_riddles(data_set="held-out", title=title, metrics=forged)

    with pytest.raises(
        UserError, match=r"riddles\.json: data_set: .* built-in evaluation already has results of held-out"
    ):
        read_inputs()
