"""Work over shards: one pure function, mapped by processes. The results do not depend on how many there are."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

from stages.formats.entry import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")

WORKERS_VARIABLE = "PARROTFLOW_WORKERS"


def worker_count() -> int:
    """Worker processes: `PARROTFLOW_WORKERS`, else the cores this process may use."""
    value = os.environ.get(WORKERS_VARIABLE, "")
    if not value:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not value.isdecimal() or int(value) < 1:
        raise UserError(f"{WORKERS_VARIABLE}={value}: expected a whole number from 1 on")
    return int(value)


def map_shards(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield `function(item)` for each item, in the order of the items.

    `function` and the items are pickled: a module's function, or a `functools.partial` of one. An error in a worker
    is raised here as it was there.
    """
    workers = min(worker_count(), len(items))
    if workers <= 1:
        yield from map(function, items)
        return
    # Spawned, not forked: pyarrow and the tokenizers hold threads, which a fork would leave in the middle of a lock.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(function, items)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
