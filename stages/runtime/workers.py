"""Work over shards: one pure function, mapped by processes of this machine, or by a Ray cluster; and its progress.

The results do not depend on which, or on how many there are. On Ray every node sees the project's folder under the
same path (a shared file system), as the results are files.
"""

import logging
import os
import pickle
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any, TypeVar

from stages.runtime.errors import UnavailableError, UserError, whole_number
from stages.runtime.supervision import describe_kill, memory_kills

Task = TypeVar("Task")
Result = TypeVar("Result")

WORKERS_VARIABLE = "PARROTFLOW_WORKERS"
RAY_VARIABLE = "RAY_ADDRESS"

POOL_START_SECONDS = 0.5
"""Typical start-up time of a worker. Work that finishes sooner in this process never starts any."""

LINE_SECONDS = 10.0
"""Between two lines of progress."""


def worker_count() -> int:
    """Worker processes: `PARROTFLOW_WORKERS`, else the cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return whole_number(WORKERS_VARIABLE) or cores


def cpu_facts(key: str) -> Iterator[str]:
    """Linux's facts about each processor, such as its `model name`; empty on other systems."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    return (line.partition(":")[2].strip() for line in lines if line.startswith(key))


def map_shards(function: Callable[[Task], Result], items: Sequence[Task], threads_each: int = 1) -> Iterator[Result]:
    """Yield `function(item)` for each item, in the order of the items.

    `threads_each` is how many cores one call keeps busy by itself: the more, the fewer processes. The first items are
    done in this process; only if they show that it takes longer than starting others do those take over.
    `function` and the items are pickled: a module's function, or a `functools.partial` of one. An error in a worker
    is raised here as it was there. Raises UnavailableError if a worker was killed.
    """
    if address := os.environ.get(RAY_VARIABLE):
        yield from _map_on_ray(address, function, items)
        return
    workers = max(1, worker_count() // threads_each)
    if workers == 1 and threads_each > 1:
        yield from _map_overlapping(function, items)
        return
    done = 0
    began = time.monotonic()
    while done < len(items) and (workers == 1 or not _pays(time.monotonic() - began, done, len(items), workers)):
        yield function(items[done])
        done += 1
    if done == len(items):
        return
    kills_before, pool = memory_kills(), _processes(workers)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items[done:]:
            try:
                waiting.append(pool.submit(function, item))
            except OSError as error:  # `handle is closed`: a worker died while another was being started
                if error.errno:
                    raise
                raise BrokenProcessPool from error
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        _drop_pool()
        raise UnavailableError(f"a worker process {describe_kill(memory_kills() > kills_before)}") from None
    finally:
        wait([call for call in waiting if not call.cancel()])  # what has begun may be writing


_pools: dict[tuple[int, int, Path], ProcessPoolExecutor] = {}
"""The pool of this process, by its id, the number of workers and the folder. A fork has a copy of its parent's pool
without the threads that serve it. It leaves the copy alone: dropping it would wait for a lock that such a thread may
have held when the process forked."""


def _processes(workers: int) -> ProcessPoolExecutor:
    """Workers in this folder, each started when there is work for it. They are kept from one map to the next: of a
    stage that maps three functions, starting them anew was a quarter of its CPU time."""
    key = os.getpid(), workers, Path.cwd()
    if key not in _pools:
        _drop_pool()
        # Spawned: a fork would leave the threads of pyarrow and the tokenizers in the middle of a lock.
        _pools[key] = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_end_with_parent)
    return _pools[key]


def _end_with_parent() -> None:
    """End this worker when its parent does, however that ends: it holds both ends of the queue that it waits for."""
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _drop_pool() -> None:
    for key in [key for key in _pools if key[0] == os.getpid()]:
        del _pools[key]


def _pays(seconds: float, done: int, items: int, workers: int) -> bool:
    """Whether starting workers takes less time than they save, by how long the first items took here."""
    if seconds < POOL_START_SECONDS:
        return False
    if not done:
        return True
    left = items - done
    return seconds / done * left * (1 - 1 / min(workers, left)) >= POOL_START_SECONDS


def _map_overlapping(function: Callable[[Task], Result], items: Sequence[Task]) -> Iterator[Result]:
    """Two calls at once: while one keeps its threads busy, the other reads or writes."""
    with ThreadPoolExecutor(2, "shards") as threads:
        try:
            yield from threads.map(function, items)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def _map_on_ray(address: str, function: Callable[[Task], Result], items: Sequence[Task]) -> Iterator[Result]:
    ray = _connected(address)
    call = ray.remote(_call_in)
    try:
        # A limited number at once: a cluster that is given everything holds all results in its memory.
        window = max(2, 2 * int(ray.cluster_resources().get("CPU", 1)))
        waiting: deque[Any] = deque()
        for item in items:
            waiting.append(call.remote(str(Path.cwd()), sys.path, pickle.dumps((function, item))))
            if len(waiting) >= window:
                yield _result(ray, waiting.popleft())
        while waiting:
            yield _result(ray, waiting.popleft())
    finally:
        ray.shutdown()


def _connected(address: str) -> Any:
    try:
        ray: Any = import_module("ray")
    except ModuleNotFoundError:
        raise UserError(f"{RAY_VARIABLE} is set, but Ray is not installed: `pip install ray`, or unset it") from None
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        # Ray itself waits for minutes, then ends the process.
        if address != "auto":
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{RAY_VARIABLE}={address}: no Ray cluster answers there ({error})") from None
    return ray


def _call_in(folder: str, module_paths: list[str], call: bytes) -> Any:
    """Make the call in a Ray worker, from the project's folder, with its modules."""
    os.chdir(folder)
    sys.path[:] = module_paths
    function, item = pickle.loads(call)
    return function(item)


def _result(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


class Progress:
    """Prints a line every `LINE_SECONDS` while work is counted, which logs, pipes and terminals show alike.

        features: 12 of 64 shards, 31 s, about 134 s left

    Work that is done before the first line is due prints nothing.
    """

    def __init__(self, what: str, unit: str, total: int | None = None) -> None:
        self.what = what
        self.unit = unit
        self.total = total
        """How much there is to do; None if that is not known."""
        self.done = 0
        self._began = self._last = time.monotonic()

    def advance(self, detail: Callable[[], str] = str) -> None:
        """Count one more as done; `detail` says what else there is to say, and is asked only for a line."""
        self.done += 1
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS:
            self._last = now
            print(self._line(now - self._began, detail()), flush=True)

    def _line(self, seconds: float, detail: str) -> str:
        parts = [f"{self.done:,} {self.unit}", *([detail] if detail else []), f"{seconds:.0f} s"]
        if self.total is not None:
            parts[0] = f"{self.done:,} of {self.total:,} {self.unit}"
            parts.append(f"about {seconds / self.done * (self.total - self.done):.0f} s left")
        return f"{self.what}: {', '.join(parts)}"


def counted(items: Iterable[Task], what: str, unit: str, total: int | None = None) -> Iterator[Task]:
    """The items, counted by a `Progress` as they pass."""
    progress = Progress(what, unit, total)
    for item in items:
        yield item
        progress.advance()
