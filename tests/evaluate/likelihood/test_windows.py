from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stages.evaluate.likelihood.windows import Window, WindowSizes, batches, document_windows, scored_per_position


@given(length=st.integers(0, 300), context_length=st.integers(2, 40), data=st.data())
def test_each_token_is_scored_once_with_the_context_that_the_stride_promises(
    length: int, context_length: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, context_length))
    windows = list(document_windows(7, length, context_length, stride))

    scored = [position for window in windows for position in range(window.scored_from, window.stop)]
    assert scored == list(range(length))
    assert scored_per_position(windows, context_length).sum() == length
    for window in windows:
        assert 0 < window.length <= context_length
        assert window.start == 0 or window.context >= context_length - stride


def test_a_document_that_fits_is_one_window() -> None:
    assert list(document_windows(0, 10, 10, 5)) == [Window(0, 0, 0, 10)]


def test_a_longer_document_moves_on_by_the_stride() -> None:
    assert list(document_windows(0, 13, 8, 4)) == [
        Window(0, 0, 0, 8),
        Window(0, 4, 8, 12),
        Window(0, 8, 12, 13),
    ]


@given(lengths=st.lists(st.integers(1, 50)), tokens=st.integers(1, 200), most=st.integers(1, 7))
def test_batches_hold_every_window_once_the_longest_first(lengths: list[int], tokens: int, most: int) -> None:
    windows = [Window(number, 0, 0, length) for number, length in enumerate(lengths)]
    grouped = batches(windows, tokens, most)

    assert all(1 <= len(batch) <= most for batch in grouped)
    assert all(len(batch) == 1 or len(batch) * batch[0].length <= tokens for batch in grouped)
    flat = [window for batch in grouped for window in batch]
    assert sorted(window.document for window in flat) == list(range(len(lengths)))
    assert [window.length for window in flat] == sorted(lengths, reverse=True)


@given(context_length=st.integers(2, 5000))
def test_positions_are_grouped_in_at_most_64_buckets_of_equal_width(context_length: int) -> None:
    first = WindowSizes(context_length, 1).buckets.tolist()

    widths = {stop - start for start, stop in pairwise([*first, context_length])}
    assert first[0] == 0
    assert len(first) <= 64
    assert max(widths) - min(widths) <= 1
    assert min(widths) >= 1
