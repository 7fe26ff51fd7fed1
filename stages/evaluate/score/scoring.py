"""From completions to verdicts: programs, judged in parallel; each verdict is written at once, so a kill loses none."""

import platform
import resource
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from dataclasses import astuple
from queue import SimpleQueue

from rich.progress import track

from stages.evaluate.score.params import Limits
from stages.evaluate.score.sandbox import Judge
from stages.formats.evaluation.generation import Completion, completions_text
from stages.formats.evaluation.problems import Problem
from stages.formats.evaluation.verdicts import Outcome, Verdict
from stages.runtime.cache import ResultLog, cache_key, drop_unused
from stages.runtime.code import code_sha256
from stages.runtime.entry import UserError
from stages.runtime.workers import worker_count

DEPENDS_ON_THE_MACHINE = ("timeout", "lost")
"""A busy machine can cause these: a right program gets another chance when scoring is started again."""

DESCRIPTORS_OF_A_JUDGE = 4
"""Open at most: the sandbox's socket and its messages, twice while it starts."""
OTHER_DESCRIPTORS = 200

OUTCOMES, OUTCOMES_OF_THE_COMMAND = "score", "score_command"
"""Kinds of the cache: the outcomes of the last run, also of one that was killed, with which the next one continues; and
those of `parrotflow score`, which scores other files."""


def python_program(problem: Problem, completion: str) -> str:
    """The program that a benchmark defines: with human-eval prompt, completion, test and the call of `check` (Chen et
    al. 2021), of MBPP the completion and the assertions (Austin et al. 2021)."""
    if problem.kind == "humaneval":
        return f"{problem.prompt}{completion}\n{problem.test}\ncheck({problem.entry_point})"
    return f"{completion}\n{problem.test}"


PROGRAMS: dict[str, Callable[[Problem, str], str]] = {"python": python_program}
"""Language of a problem -> its programs. Another language needs its programs here, and a way to run them in inside/."""


def program(problem: Problem, completion: str) -> str:
    """The program of a sample. Raises UserError for a language that cannot be run."""
    if problem.language not in PROGRAMS:
        raise UserError(
            f"{problem.task_id}: programs in {problem.language} cannot be run (known: {', '.join(PROGRAMS)}); leave "
            "its problems out, or set score.run_generated_code to false"
        )
    return PROGRAMS[problem.language](problem, completion)


def programs_of(problems: Sequence[Problem], completions: Sequence[Completion]) -> list[str]:
    """The program of each completion. Raises UserError for one of an unknown problem."""
    known = {problem.task_id: problem for problem in problems}
    for completion in completions:
        if completion.task_id not in known:
            raise UserError(f"{completion.task_id}: a completion of a problem that is not among the problems")
    return [program(known[completion.task_id], completion.completion) for completion in completions]


def judged(
    problems: Sequence[Problem], completions: Sequence[Completion], limits: Limits, kind: str = OUTCOMES
) -> tuple[list[Verdict], int]:
    """The verdict on each completion, in their order, and how many programs they are: equal ones are judged once.

    Outcomes that hold for these completions, limits and code are taken from the cache. Raises UserError for a
    completion of an unknown problem, and as `judge_programs` does.
    """
    programs = programs_of(problems, completions)
    keys = [cache_key(program) for program in programs]
    depends_on = (completions_text(completions), limits.model_dump_json(), code_sha256("stages.evaluate.score"))
    known = ResultLog(kind, cache_key(*depends_on, platform.python_version()))
    outcomes = judge_programs(dict(zip(keys, programs, strict=True)), limits, known)
    drop_unused(kind)
    verdicts = [
        Verdict(task_id=completion.task_id, sample=completion.sample, result=found.result, exception=found.exception)
        for completion, found in zip(completions, map(outcomes.__getitem__, keys), strict=True)
    ]
    return verdicts, len(outcomes)


def judge_programs(programs: Mapping[str, str], limits: Limits, known: ResultLog) -> dict[str, Outcome]:
    """The outcome of each program, by its key.

    Outcomes in `known` are not judged again, unless a busy machine may have caused them; each new one is appended. One
    worker for each core, or `PARROTFLOW_WORKERS`; fewer where the limit of open files is too low for them. Raises
    UserError where this machine cannot isolate.
    """
    read = {key: Outcome(*outcome) for key, outcome in known.read().items() if key in programs}
    outcomes = {key: outcome for key, outcome in read.items() if outcome.result not in DEPENDS_ON_THE_MACHINE}
    to_do = {key: program for key, program in programs.items() if key not in outcomes}
    if not to_do:
        return outcomes
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    workers = min(worker_count(), len(to_do), max(1, (open_files - OTHER_DESCRIPTORS) // DESCRIPTORS_OF_A_JUDGE))
    with ExitStack() as stack:
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
                    known.append(keys[done], astuple(outcome))
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                for judge in judges:
                    judge.kill()
                raise
    return outcomes
