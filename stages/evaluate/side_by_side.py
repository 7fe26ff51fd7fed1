"""How work is shared: among threads of a process, each with whole batches or rows of its own, and among processes.

Threads that share each product of a small model wait for each other after every operation; here they meet only where
one needs the next piece of work. What is computed does not depend on how many there are: a product takes one core, or
as many as `cores_for` says where memory has no room for more threads, which follows from the machine and the model.

Measured on 2 cores of an AMD EPYC, a GPT-2 of 4.3 million parameters: scoring 160 kB of held-out text took 2.7 s in two
threads of one core each, and 3.3 s where both cores shared every product.
"""

import copy
import math
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, TypeVar

import psutil
import torch
from transformers import PreTrainedModel

from stages.runtime.entry import EXIT_TERMINATED, UserError, whole_number
from stages.runtime.workers import worker_count

PROCESSES_VARIABLE = "PARROTFLOW_EVALUATE_PROCESSES"

MEMORY_SHARE = 0.25
"""Of the machine's memory, for what the threads of all cores hold."""

Result = TypeVar("Result")


def cores_of(model: PreTrainedModel) -> int:
    """The cores that a model's threads can divide: those that torch may use; of a model on a GPU 1."""
    return torch.get_num_threads() if model.device.type == "cpu" else 1


def cores_for(model: PreTrainedModel, size: int) -> int:
    """How many cores compute a product, so that each thread has room for `size` bytes.

    Not the number of processes decides: each has its share of the cores, and so of the memory.
    """
    memory_per_core: float = MEMORY_SHARE * psutil.virtual_memory().total / (os.cpu_count() or 1)
    return min(cores_of(model), max(1, math.ceil(size / memory_per_core)))


@contextmanager
def cores_each(number: int) -> Iterator[None]:
    """Within, each product uses `number` cores, also in threads that are started there."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def twin(model: PreTrainedModel) -> PreTrainedModel:
    """The same weights in modules of their own: some architectures change their modules while they compute."""
    shared = {id(parameter): parameter for parameter in model.parameters()}
    return copy.deepcopy(model, shared)


def next_of(waiting: deque[int]) -> int | None:
    """Take the next piece of work that several threads share; None if there is none."""
    try:
        return waiting.popleft()
    except IndexError:
        return None


def merge_side_by_side(sources: Sequence[Iterable[Result | None]]) -> Generator[Result]:
    """Yield what the sources yield, as it comes; each is read by a thread of its own.

    Close it: a consumer that only stops leaves the threads at work. None is left out: a source yields it where it could
    stop, as an error in another one, or the consumer's, ends all.
    """
    if len(sources) == 1:
        yield from (result for result in sources[0] if result is not None)
        return
    found: SimpleQueue[Result | None] = SimpleQueue()  # None: a source has ended
    stop = Event()

    def read(source: Iterable[Result | None]) -> None:
        try:
            for result in source:
                if result is not None:
                    found.put(result)
                if stop.is_set():
                    break
        except BaseException:
            stop.set()
            raise
        finally:
            found.put(None)

    with ThreadPoolExecutor(len(sources)) as threads:
        reading = [threads.submit(read, source) for source in sources]
        try:
            running = len(sources)
            while running:
                result = found.get()
                if result is None:
                    running -= 1
                else:
                    yield result
        finally:
            stop.set()
        for future in reading:
            future.result()


def run_in_processes(work: Callable[[int, int], None]) -> None:
    """Call `work(rank, processes)` in `PARROTFLOW_EVALUATE_PROCESSES` processes; unset, in one for each GPU, or here.

    They share the cores, and each takes the GPU of its rank. `work` is a `functools.partial` of a module's function,
    and leaves its results in files. Raises the UserError or OSError of the first that fails, and UserError where one
    dies; the others are killed. All end with this process, however it ends.
    """
    processes = whole_number(PROCESSES_VARIABLE, max(1, torch.cuda.device_count()))
    if processes == 1:
        work(0, 1)
        return
    context = get_context("spawn")  # a fork would leave the threads of torch and the tokenizers in the middle of a lock
    errors = context.SimpleQueue()
    workers: list[SpawnProcess] = []
    try:
        for rank in range(processes):
            workers.append(context.Process(target=_in_process, args=(work, rank, processes, errors), daemon=True))
            workers[-1].start()
        while running := _running(workers, errors):
            wait(running)
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


def _running(workers: Sequence[SpawnProcess], errors: Any) -> list[int]:
    """The sentinels of those at work; raises what ended one of them.

    One look at each decides both: a process that dies between two looks would be missed, and its like awaited for ever.
    """
    codes = [worker.exitcode for worker in workers]
    for code in filter(None, codes):
        raise _failure(code, None if errors.empty() else errors.get())
    return [worker.sentinel for worker, code in zip(workers, codes, strict=True) if code is None]


def _failure(code: int, error: Exception | None) -> Exception:
    return error or UserError(
        f"a worker died with exit code {code}; its messages are above ({-signal.SIGKILL}: something killed it, as the "
        f"system does where memory runs out). {PROCESSES_VARIABLE}=1 works in one process"
    )


def _in_process(work: Callable[[int, int], None], rank: int, processes: int, errors: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to the command too, which ends this process
    Thread(target=_end_with_the_command, daemon=True).start()
    torch.set_num_threads(max(1, worker_count() // processes))
    if torch.cuda.is_available():
        torch.cuda.set_device(rank % torch.cuda.device_count())
    try:
        work(rank, processes)
    except (UserError, OSError) as error:
        errors.put(error)
        raise SystemExit(1) from None


def _end_with_the_command() -> None:
    command = parent_process()
    assert command is not None
    command.join()
    os._exit(EXIT_TERMINATED)
