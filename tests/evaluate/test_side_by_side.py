import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stages.evaluate.model import open_model
from stages.evaluate.side_by_side import cores_each, merge_side_by_side, next_of, twin


def test_each_piece_of_shared_work_is_done_once() -> None:
    waiting = deque(range(200))

    def work(own: int) -> Iterator[tuple[int, int]]:
        while (piece := next_of(waiting)) is not None:
            time.sleep(0.0001)
            yield own, piece

    done = list(merge_side_by_side([work(own) for own in range(3)]))

    assert sorted(piece for _, piece in done) == list(range(200))
    assert {own for own, _ in done} == {0, 1, 2}


def count_to(number: int, stopped: list[int], error_at: int | None = None) -> Iterator[int | None]:
    try:
        for value in range(number):
            yield value if value % 2 else None
            time.sleep(0.001)
            if value == error_at:
                raise OSError("disk")
    finally:
        stopped.append(number)


@pytest.mark.parametrize("threads", [1, 3])
def test_what_all_sources_yield_comes_once_without_their_pauses(threads: int) -> None:
    stopped: list[int] = []

    found = list(merge_side_by_side([count_to(20, stopped) for _ in range(threads)]))

    assert sorted(found) == sorted(list(range(1, 20, 2)) * threads)
    assert stopped == [20] * threads


def test_an_error_in_one_source_ends_all_and_is_raised() -> None:
    stopped: list[int] = []

    with pytest.raises(OSError, match="disk"):
        list(merge_side_by_side([count_to(10, stopped, error_at=4), count_to(1_000_000, stopped)]))

    assert stopped in ([10], [10, 1_000_000])


def test_a_consumer_that_stops_ends_all_sources_at_their_next_pause() -> None:
    before = threading.active_count()
    results = merge_side_by_side([count_to(1_000_000, []), count_to(1_000_000, [])])
    next(results)

    results.close()

    assert threading.active_count() == before


def test_products_take_the_given_cores_within_also_in_new_threads_and_as_before_afterwards() -> None:
    before = torch.get_num_threads()
    seen: list[int] = []
    with cores_each(1):
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        seen.append(torch.get_num_threads())

    assert seen == [1, 1]
    assert torch.get_num_threads() == before


def test_a_twin_has_the_same_weights_and_modules_of_its_own(project: Path) -> None:
    model = open_model(project / "model")

    other = twin(model)

    own, others = dict(model.named_parameters()), dict(other.named_parameters())
    assert own.keys() == others.keys()
    assert all(others[name] is parameter for name, parameter in own.items())
    assert other.get_input_embeddings().weight is other.get_output_embeddings().weight
    assert not {id(module) for module in model.modules()} & {id(module) for module in other.modules()}
