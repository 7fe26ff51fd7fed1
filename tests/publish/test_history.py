from datetime import UTC, datetime
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from stages.publish.folder import Move, before_main, read_moves, record_move


def moves(*steps: tuple[str | None, str, str]) -> list[Move]:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    return [Move.model_validate({"at": at, "from": before, "to": to, "why": why}) for before, to, why in steps]


PUBLISHED = ((None, "A", "published"), ("A", "B", "published"), ("B", "C", "promoted"))


def test_each_rollback_goes_a_step_further_back() -> None:
    kept = {"A", "B", "C"}

    assert before_main(moves(*PUBLISHED), kept) == "B"
    assert before_main(moves(*PUBLISHED, ("C", "B", "rolled back")), kept) == "A"
    assert before_main(moves(*PUBLISHED, ("C", "B", "rolled back"), ("B", "A", "rolled back")), kept) is None


def test_a_publication_after_a_rollback_leads_back_to_what_was_rolled_back_to() -> None:
    again = moves(*PUBLISHED, ("C", "B", "rolled back"), ("B", "D", "published"))

    assert before_main(again, {"A", "B", "C", "D"}) == "B"


def test_what_was_removed_is_passed_over() -> None:
    assert before_main(moves(*PUBLISHED), {"A", "C"}) == "A"
    assert before_main(moves(*PUBLISHED), {"C"}) is None


def test_what_was_published_before_moves_were_recorded_counts() -> None:
    assert before_main(moves(("A", "B", "published")), {"A", "B"}) == "A"
    assert before_main([], {"A"}) is None


@given(st.lists(st.sampled_from("ABCD"), min_size=1, max_size=12))
def test_a_rollback_never_leads_to_where_main_is(names: list[str]) -> None:
    steps = [(before, to, "published") for before, to in zip([None, *names], names, strict=False) if before != to]

    assert before_main(moves(*steps), set(names)) != names[-1]


def test_moves_are_read_as_they_were_recorded(tmp_path: Path) -> None:
    record_move(tmp_path, None, "A", "published")
    record_move(tmp_path, "A", "B", "promoted")

    found = read_moves(tmp_path, "B")

    assert [(move.before, move.to, move.why) for move in found] == [(None, "A", "published"), ("A", "B", "promoted")]


def test_a_rollback_to_a_revision_that_was_main_twice_goes_back_to_its_last_time() -> None:
    steps = moves((None, "A", "published"), ("A", "B", "published"), ("B", "A", "published"), ("A", "C", "published"))

    assert before_main([*steps, *moves(("C", "A", "rolled back"))], {"A", "B", "C"}) == "B"


def test_no_move_is_lost_where_main_was_led_elsewhere_by_hand(tmp_path: Path) -> None:
    record_move(tmp_path, None, "A", "published")
    record_move(tmp_path, "A", "B", "promoted")

    record_move(tmp_path, "by hand", "C", "published")

    assert [move.to for move in read_moves(tmp_path, "C")] == ["A", "C"]
