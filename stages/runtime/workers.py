"""Maps a pure function over shards, in processes on this machine or on a Ray cluster, and shows progress.

The results depend on neither. On Ray every node must see the project's folder at the same path (a shared file system),
because the results are files.
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

RAY_VARIABLE = "RAY_ADDRESS"

POOL_START_SECONDS = 0.5
"""Typical start-up time of a worker. Work that finishes sooner in this process never starts any."""

LINE_SECONDS = 10.0
"""The time between two lines of progress."""


def worker_count() -> int:
    """The number of worker processes: `PARROTFLOW_WORKERS`, else that of cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return whole_number("PARROTFLOW_WORKERS") or cores


def cpu_facts(key: str) -> Iterator[str]:
    """A field of Linux's /proc/cpuinfo, such as `model name`, for each processor; empty on other systems."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    return (line.partition(":")[2].strip() for line in lines if line.startswith(key))


def map_shards(function: Callable[[Task], Result], items: Sequence[Task], threads_each: int = 1) -> Iterator[Result]:
    """Yield `function(item)` for each item, in order.

    `threads_each` is the number of cores that one call uses; more cores mean fewer processes. The first items run in
    this process; workers are started only if that saves time. `function` and the items must be picklable: a module's
    function, or a `functools.partial` of one. An error in a worker is raised here unchanged. Raises UnavailableError if
    a worker was killed.
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
            except OSError as error:  # `handle is closed`: a worker died while another was starting
                if error.errno:
                    raise
                raise BrokenProcessPool from error
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        _drop_pool()
        raise UnavailableError(f"a worker process {describe_kill(memory_kills() > kills_before)}") from None
    finally:
        wait([call for call in waiting if not call.cancel()])  # running calls may be writing


_pools: dict[tuple[int, int, Path], ProcessPoolExecutor] = {}
"""The pool of this process, by process id, number of workers and folder. A fork has a copy of its parent's pool without
the threads that serve it, and must not drop it: that would wait for a lock that such a thread may have held."""


def _processes(workers: int) -> ProcessPoolExecutor:
    """A pool of workers in this folder, started on demand. It is kept for the next map: in a stage that maps three
    functions, starting workers anew took a quarter of the CPU time."""
    key = os.getpid(), workers, Path.cwd()
    if key not in _pools:
        _drop_pool()
        # Spawned: forks would inherit locks that threads of pyarrow and tokenizers hold.
        _pools[key] = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_end_with_parent)
    return _pools[key]


def _end_with_parent() -> None:
    """End this worker when its parent does. It would not notice by its queue, of which it holds both ends."""
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
    """True if workers save more time than they take to start, judging by the first items."""
    if seconds < POOL_START_SECONDS:
        return False
    if not done:
        return True
    left = items - done
    return seconds / done * left * (1 - 1 / min(workers, left)) >= POOL_START_SECONDS


def _map_overlapping(function: Callable[[Task], Result], items: Sequence[Task]) -> Iterator[Result]:
    """Run two calls at once: while one computes with its threads, the other reads or writes."""
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
        # Limit the calls in flight, because the cluster holds their results in memory.
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
        # Check first: Ray would wait for minutes, then end the process.
        if address != "auto":
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{RAY_VARIABLE}={address}: no Ray cluster answers there ({error})") from None
    return ray


def _call_in(folder: str, module_paths: list[str], call: bytes) -> Any:
    """Run a call in a Ray worker, in the project's folder and with its modules."""
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
    """Prints progress every `LINE_SECONDS`: `features: 12 of 64 shards, 31 s, about 134 s left`."""

    def __init__(self, what: str, unit: str, total: int | None = None) -> None:
        self.what = what
        self.unit = unit
        self.total = total
        """The number of items; None if it is unknown."""
        self.done = 0
        self._began = self._last = time.monotonic()

    def advance(self, detail: Callable[[], str] = str) -> None:
        """Count one more item; `detail` returns further text and is called only if a line is printed."""
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
    """Yield the items, counted by a `Progress`."""
    progress = Progress(what, unit, total)
    for item in items:
        yield item
        progress.advance()
