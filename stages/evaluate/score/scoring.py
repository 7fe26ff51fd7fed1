"""Judges programs in parallel and writes each verdict at once, so that a kill does not lose it."""

import json
import platform
import resource
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import astuple
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock

from rich.progress import track

from stages.evaluate.score.judge import Judge
from stages.evaluate.score.params import Limits
from stages.evaluate.score.programs import Program
from stages.formats.evaluation.completions import Completion, completions_text
from stages.formats.evaluation.verdicts import Outcome, Verdict
from stages.runtime.code import code_sha256
from stages.runtime.shard_cache import CACHE, cache_key
from stages.runtime.workers import worker_count

DEPENDS_ON_THE_MACHINE = ("timeout", "lost")
"""A busy machine can cause these: a right program gets another chance when scoring is started again."""

DESCRIPTORS_OF_A_JUDGE = 16
"""Open at most: sockets and pipes of two sandboxes, and of a program that starts."""
OTHER_DESCRIPTORS = 200

KNOWN = CACHE / "score" / "verdicts"
"""The verdicts of the last run, also of one that was killed: the next one continues with them."""


KNOWN_OF_THE_COMMAND = CACHE / "score" / "verdicts_of_the_command"
"""The same of `parrotflow score`, which scores other files."""


def known_outcomes(completions: Sequence[Completion], limits: Limits, folder: Path = KNOWN) -> Path:
    """The file of outcomes that hold for these completions, limits and code."""
    parts = (completions_text(completions), limits.model_dump_json(), code_sha256("stages.evaluate.score"))
    return folder / f"{cache_key(*parts, platform.python_version())}.jsonl"


def verdicts_of(
    completions: Sequence[Completion], programs: Sequence[Program], limits: Limits, known: Path
) -> list[Verdict]:
    """The verdict on each completion, in their order; equal programs are judged once. Errors as of `judge_programs`."""
    outcomes = judge_programs({program.key: program for program in programs}, limits, known)
    return [
        Verdict(task_id=completion.task_id, sample=completion.sample, result=found.result, exception=found.exception)
        for completion, program in zip(completions, programs, strict=True)
        for found in [outcomes[program.key]]
    ]


def judge_programs(programs: Mapping[str, Program], limits: Limits, known: Path) -> dict[str, Outcome]:
    """The outcome of each program, by its key.

    `known` is a file of outcomes by key: those are not judged again, unless a busy machine may have caused them, and
    each new one is appended. One worker for each core, or `PARROTFLOW_WORKERS`; fewer where the limit of open files is
    too low for them. Raises UserError where this machine cannot isolate.
    """
    outcomes = {
        key: outcome
        for key, outcome in read_known(known)
        if key in programs and outcome.result not in DEPENDS_ON_THE_MACHINE
    }
    to_do = {key: program for key, program in programs.items() if key not in outcomes}
    if not to_do:
        return outcomes
    workers = allow_workers(min(worker_count(), len(to_do)))
    known.parent.mkdir(parents=True, exist_ok=True)
    with known.open("a", encoding="utf-8") as file, _judges(workers, limits) as judges:
        lock, stopped = Lock(), Event()
        idle: SimpleQueue[Judge] = SimpleQueue()
        for one in judges:
            idle.put(one)

        def outcome_of(key: str) -> None:
            judge = idle.get()
            try:
                outcome = judge.judge(to_do[key])
            finally:
                idle.put(judge)
            with lock:
                if stopped.is_set():
                    return
                outcomes[key] = outcome
                # The newline first, so that a line that a kill truncated does not spoil this one.
                file.write("\n" + json.dumps([key, *astuple(outcome)]))
                file.flush()

        with ThreadPoolExecutor(workers, "judges") as threads:
            try:
                for _ in track(threads.map(outcome_of, to_do), description="scoring", total=len(to_do)):
                    pass
            except BaseException:
                stopped.set()
                threads.shutdown(wait=False, cancel_futures=True)
                for one in judges:
                    one.kill()
                raise
    return outcomes


def allow_workers(count: int) -> int:
    """Raise the limit of open files for `count` judges; returns how many of them the hard limit allows, at least 1."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = OTHER_DESCRIPTORS + count * DESCRIPTORS_OF_A_JUDGE
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return count
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return min(count, max(1, (allowed - OTHER_DESCRIPTORS) // DESCRIPTORS_OF_A_JUDGE))


@contextmanager
def _judges(count: int, limits: Limits) -> Iterator[list[Judge]]:
    """Judges that are ready."""
    with ExitStack() as stack:
        judges = [stack.enter_context(closing(Judge(limits))) for _ in range(count)]  # they start in parallel
        for one in judges:
            one.wait_until_ready()
        yield judges


def drop_others(known: Path) -> None:
    """Delete the outcomes of other completions, when the results are written."""
    for file in known.parent.glob("*.jsonl"):
        if file != known:
            file.unlink(missing_ok=True)


def read_known(path: Path) -> Iterator[tuple[str, Outcome]]:
    """The outcomes that a run has written; a truncated line is skipped."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else []
    for line in lines:
        with suppress(ValueError, TypeError):
            key, result, exception = json.loads(line)
            yield key, Outcome(result, exception)
