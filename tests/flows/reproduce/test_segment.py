"""A segment of a training: what its module's end means."""

from pathlib import Path

import pytest

from flows.reproduce.execution import EXIT_DIFFERENT, EXIT_EQUAL, RecordedSegment, judged_segment
from stages.formats.revision.execution import SegmentReport
from stages.runtime.entry import EXIT_UNAVAILABLE, UnavailableError, UserError

SEGMENT = RecordedSegment(3, 6)


@pytest.mark.parametrize("content", [None, "{}"])
def test_a_module_that_crashed_is_no_difference(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "report.json").write_text(content)

    with pytest.raises(UserError, match="steps 3 to 6 could not be computed"):
        judged_segment(EXIT_DIFFERENT, tmp_path / "report.json", SEGMENT)


def test_the_verdict_is_that_of_the_report(tmp_path: Path) -> None:
    report = SegmentReport(verdict="different", reason="why", from_step=4, to_step=6, seconds=1.0)
    report.write(tmp_path / "report.json")

    assert judged_segment(EXIT_DIFFERENT, tmp_path / "report.json", SEGMENT) == report
    with pytest.raises(UserError, match="could not be computed"):
        judged_segment(EXIT_EQUAL, tmp_path / "report.json", SEGMENT)


def test_a_service_that_does_not_answer_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        judged_segment(EXIT_UNAVAILABLE, tmp_path / "report.json", SEGMENT)
