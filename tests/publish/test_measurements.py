"""An evaluation of one's own is in the card and in the Hub's model-index, and publish does not know it."""

import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from stages.formats.evaluation.measurements import Measurements, Metric
from stages.formats.model_folder import weights_sha256
from stages.formats.reports import read_json
from stages.formats.revision.model_index import contradictions
from stages.publish.__main__ import main
from stages.publish.inputs import paths_read
from stages.runtime.entry import UserError

MAIN, REPORT = Path("published/tiny/main"), Path("reports/riddles.json")


def write_riddles(**changes: object) -> None:
    metrics = {
        "solved": Metric(label="solved *riddles*", unit="share", value=0.25, interval_95=(0.125, 0.5), over=1200),
        "seconds": Metric(label="time", unit="s", value=None, over=3),
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


def test_its_numbers_alone_are_metrics_and_it_is_read_by_the_publication(project: Path) -> None:
    write_riddles()

    assert read_json(REPORT) == {
        "metrics": {
            "seconds": {"interval_95": None, "over": 3, "value": None},
            "solved": {"interval_95": [0.125, 0.5], "over": 1200, "value": 0.25},
        }
    }
    assert {REPORT, Path("reports/riddles_receipt.json")} < set(paths_read())


def test_a_verification_compares_the_card_with_it(project: Path, tmp_path: Path) -> None:
    write_riddles()
    main()
    revision = tmp_path / "revision"
    (revision / "record").mkdir(parents=True)
    Path("reports").rename(revision / "record/reports")
    for name in ("README.md", "evaluation.json"):
        (revision / name).write_bytes((MAIN / name).read_bytes())
    assert list(contradictions(revision)) == []

    report = revision / "record" / REPORT
    values = json.loads(report.read_text())
    values["metrics"]["solved"]["value"] = 0.5
    report.write_text(json.dumps(values))
    assert list(contradictions(revision)) == [
        "solved of owner/riddles is 0.25, and the reports of the revision have 0.5"
    ]
    report.write_text("{}")
    (fault,) = contradictions(revision)
    assert fault.startswith("a report cannot be read (")


def test_measured_on_other_weights_it_is_refused(project: Path) -> None:
    write_riddles(weights_sha256="of others")

    with pytest.raises(UserError, match=r"reports/riddles_receipt\.json: measured on other weights"):
        main()
    write_riddles()
    REPORT.write_text('{"metrics": {"solved": {}}}')
    with pytest.raises(UserError, match=r"reports/riddles\.json: metrics\.solved\.value: .*; run `dvc repro publish`"):
        main()
