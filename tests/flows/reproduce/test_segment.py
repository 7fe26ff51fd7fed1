"""A segment of a training: what its module's end means; and what is said and checked of any request."""

from pathlib import Path

import pytest

from flows.reproduce.reproduction import require_writable
from flows.reproduce.request import Request
from flows.reproduce.segment import DIFFERENT, EQUAL, Segment, judged_segment
from stages.formats.revision.segment import SegmentReport, write_segment_report
from stages.runtime.entry import EXIT_UNAVAILABLE, UnavailableError, UserError

SEGMENT = Segment(3, 6)


@pytest.mark.parametrize("content", [None, "{}"])
def test_a_module_that_crashed_is_no_difference(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "report.json").write_text(content)

    with pytest.raises(UserError, match="steps 3 to 6 could not be computed"):
        judged_segment(DIFFERENT, tmp_path / "report.json", SEGMENT)


def test_the_verdict_is_that_of_the_report(tmp_path: Path) -> None:
    report = SegmentReport(verdict="different", reason="why", from_step=4, to_step=6, seconds=1.0)
    write_segment_report(tmp_path / "report.json", report)

    assert judged_segment(DIFFERENT, tmp_path / "report.json", SEGMENT) == report
    with pytest.raises(UserError, match="could not be computed"):
        judged_segment(EQUAL, tmp_path / "report.json", SEGMENT)


def test_a_service_that_does_not_answer_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        judged_segment(EXIT_UNAVAILABLE, tmp_path / "report.json", SEGMENT)


def test_a_page_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    require_writable(tmp_path / "new" / "report.html")

    for place in (tmp_path, tmp_path / "file" / "report.html"):
        with pytest.raises(UserError, match="no file can be written there"):
            require_writable(place)


def test_the_command_is_shown_without_credentials() -> None:
    shown = Request("main", source="https://me:secret@example.org/code.git").command_line

    assert shown == "parrotflow reproduce main --source https://example.org/code.git"
